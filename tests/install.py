#!/usr/bin/env python3
"""What others get: install.py BUILD COMPILER CMAKE WHAT.
exports  the shared library exports what the public headers declare, no more and no less
headers  each public header compiles alone, as C and as C++
install  examples/hello.c builds against an installed, moved tree in every way, and keeps its budgets
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADERS = sorted(os.listdir(f"{SOURCE}/include/weir"))
WARN = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
MIB = 1 << 20
BUILD, COMPILER, CMAKE = os.path.abspath(sys.argv[1]), *sys.argv[2:4]


def run(*command, **options):
    done = subprocess.run(command, text=True, capture_output=True, **options)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


def header(name):
    return open(f"{SOURCE}/include/weir/{name}").read()


def exports():
    declared = set()
    for name in HEADERS:
        code = re.sub(r"/\*.*?\*/|^#.*?(?<!\\)$", "", header(name), flags=re.S | re.M)
        code = re.sub(r"typedef[^;]*;", "", code)
        declared |= set(re.findall(r"\b(weir_\w+)\(", code))
    assert len(declared) > 20, declared
    symbols = [line.split()[-1] for line in run("nm", "-D", "--defined-only", f"{BUILD}/libweir.so").splitlines()]
    assert set(symbols) == declared, f"not the same in library and headers: {set(symbols) ^ declared}"
    print(f"{len(declared)} functions declared and exported")
    lines = run("nm", "--defined-only", "--extern-only", f"{BUILD}/libweir.a").splitlines()
    static = {words[2] for words in map(str.split, lines) if len(words) == 3}
    other = [name for name in static if not name.startswith(("weir_", "."))] # .: the compiler's
    assert len(static) > len(declared) and not other, f"libweir.a defines names of others: {other}"


def headers():
    compilers = [("gcc", "c", "c11"), ("gcc", "c", "c17"), ("g++", "c++", "c++17"),
                 ("clang", "c", "c11"), ("clang", "c", "c17"), ("clang++", "c++", "c++17")]
    for name in HEADERS:
        text = f"#include <weir/{name}>\n#include <weir/{name}>\nint main(void)\n{{\n    return 0;\n}}\n"
        for compiler, language, standard in compilers:
            run(compiler, *WARN, f"-std={standard}", "-x", language, "-fsyntax-only",
                f"-I{SOURCE}/include", "-", input=text)
    print(f"{len(HEADERS)} headers, {len(compilers)} compilers and standards each")


def installed(work):
    """An installed tree that is not where it was installed to."""
    stage = f"{work}/stage"
    run(CMAKE, "--install", BUILD, "--prefix", "/opt/weir", env={**os.environ, "DESTDIR": stage})
    shutil.move(f"{stage}/opt/weir", f"{work}/tree")
    assert os.listdir(f"{stage}/opt") == [] and os.listdir(stage) == ["opt"], "files outside the prefix"
    found = [root for root, _, names in os.walk(f"{work}/tree") if "weir.pc" in names]
    os.environ["PKG_CONFIG_PATH"] = found[0]
    return f"{work}/tree"


def with_pkg_config(work):
    """(program, library path it needs): C by two compilers, C++, and the static library."""
    flags = run("pkg-config", "--cflags", "--libs", "weir").split()
    libraries = run("pkg-config", "--variable=libdir", "weir").strip()
    hello = f"{SOURCE}/examples/hello.c"
    for compiler, language, standard in (("gcc", "c", "c17"), ("clang", "c", "c17"), ("g++", "c++", "c++17")):
        program = f"{work}/hello-{compiler}"
        run(compiler, "-O2", *WARN, f"-std={standard}", "-x", language, hello, "-x", "none", *flags, "-lm",
            "-o", program)
        yield program, libraries
    flags = run("pkg-config", "--cflags", "--static", "--libs", "weir").replace("-lweir", "-l:libweir.a").split()
    run(COMPILER, "-O2", *WARN, hello, *flags, "-o", f"{work}/hello-static")
    yield f"{work}/hello-static", None


def with_cmake(work, tree):
    os.mkdir(f"{work}/user")
    with open(f"{work}/user/CMakeLists.txt", "w") as out:
        out.write(f"""cmake_minimum_required(VERSION 3.22)
project(user LANGUAGES C)
find_package(weir {version()} REQUIRED)
foreach(kind weir weir_static)
  add_executable(hello-${{kind}} {SOURCE}/examples/hello.c)
  target_link_libraries(hello-${{kind}} PRIVATE weir::${{kind}} m)
endforeach()
""")
    run(CMAKE, "-S", f"{work}/user", "-B", f"{work}/user/build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={tree}",
        f"-DCMAKE_C_COMPILER={COMPILER}", "-DCMAKE_BUILD_TYPE=Release")
    run(CMAKE, "--build", f"{work}/user/build", "-j", "2")
    for kind in ("weir", "weir_static"):
        yield f"{work}/user/build/hello-{kind}", None


def version():
    return re.search(r'WEIR_VERSION\s+"(.*)"', header("status.h"))[1]


def hello_run(program, libraries, directory):
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries or ""}
    shared = "libweir.so.0" in run("readelf", "-d", program)
    assert shared == ("static" not in program), f"{program}: linked with the wrong library"
    child = subprocess.Popen([program], cwd=directory, env=environment, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = child.stdout.read(), child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return child.returncode, out, err, usage.ru_maxrss * 1024


def keeps_budgets(program, libraries, directory):
    code, out, err, resident = hello_run(program, libraries, directory)
    assert code == 0, f"{program}: {out}{err}"
    held = {tier: float(mib) for tier, mib in re.findall(r"^(device|host|nvme) +([\d.]+) MiB", out, re.M)}
    assert 0 < held["device"] <= 32 and 0 < held["host"] <= 64 and held["nvme"] >= 128, out
    assert "\n0 of 12582912 weights" in out, out
    assert resident <= (32 + 64 + 128) * MIB, f"{program}: {resident} bytes resident"
    print(f"{os.path.basename(program)}: {resident // MIB} MiB resident")


def readme_line(work, tree):
    """The one that README has to paste, in a shell that knows nothing."""
    line = re.search(r"^export PKG_CONFIG_PATH=DIR/.*$", open(f"{SOURCE}/README.md").read(), re.M)[0]
    if not os.path.isdir(f"{tree}/lib/pkgconfig"):
        return print("left out: the line of README, libraries do not lie in lib here")
    os.mkdir(f"{work}/pasted")
    shutil.copy(f"{SOURCE}/examples/hello.c", f"{work}/pasted")
    bare = {k: v for k, v in os.environ.items() if k not in ("PKG_CONFIG_PATH", "LD_LIBRARY_PATH")}
    out = run("sh", "-c", line.replace("DIR/", f"{tree}/"), cwd=f"{work}/pasted", env=bare)
    assert "\n0 of 12582912 weights" in out, out
    print("the line of README builds and runs")


def install():
    with tempfile.TemporaryDirectory(dir=BUILD) as work:
        tree = installed(work)
        assert run("pkg-config", "--modversion", "weir").strip() == version()
        run(f"{tree}/bin/weir-train", "--help")
        assert "--end-token" in run(f"{tree}/bin/weir-tokenize", "--help")
        readme_line(work, tree)
        programs = [*with_pkg_config(work), *with_cmake(work, tree)]
        for program, libraries in programs:
            keeps_budgets(program, libraries, work)
        code, _, err, _ = hello_run(*programs[0], "/proc")
        assert code == 1 and err.startswith("hello: extent") and err.count("\n") == 1, f"{code} {err}"


{"exports": exports, "headers": headers, "install": install}[sys.argv[4]]()
