#!/usr/bin/env python3
"""Turns text into token files for weir-train --data. Installed as weir-tokenize.

  python3 -m venv tokens && tokens/bin/pip install tokenizers      once: systems refuse a pip without a venv
  tokens/bin/python examples/train/tokenize.py --tokenizer model/tokenizer.json --end-token '</s>' \\
      --out data.bin text.txt folder

The file holds little-endian token ids without a header: uint16 if the vocabulary has at most 65536
entries, else uint32, which is how weir-train reads it. Of folders all files are taken, in order of
their names, folders below in their place, links not followed: the order of weir-train --data. Text
is read in pieces of --piece-bytes, cut at line ends. --end-token ends each file; without it nothing
tells the model where one ends and the next begins.
"""
import argparse
import array
import os
import sys


def files(path):
    if not os.path.isdir(path):
        return [path]
    entries = sorted(os.scandir(os.fsencode(path)), key=lambda entry: entry.name)
    inside = [os.fsdecode(e.path) for e in entries if e.is_file(follow_symlinks=False) or e.is_dir(follow_symlinks=False)]
    return [file for child in inside for file in files(child)]


def pieces(path, size):
    with open(path, encoding="utf-8", errors="replace") as file:
        while True:
            lines = file.readlines(size)
            if not lines:
                return
            yield "".join(lines)


def open_tokenizer(parser, path):
    try:
        from tokenizers import Tokenizer
    except ImportError:
        parser.error("this Python has no package tokenizers: python3 -m venv tokens && tokens/bin/pip install tokenizers, "
                     f"then tokens/bin/python {sys.argv[0]} ...")
    return Tokenizer.from_file(path)


def token_id(parser, tokenizer, text):
    found = tokenizer.token_to_id(text)
    if found is None:
        parser.error(f'--end-token "{text}" is not one token of --tokenizer; give one, as "</s>" or "<|endoftext|>"')
    return found


def write(out, texts, tokenizer, code, piece_bytes, end):
    count = 0
    for path in texts:
        for text in pieces(path, piece_bytes):
            count += put(out, code, tokenizer.encode(text, add_special_tokens=False).ids)
            print(f"\r{path}: {count} tokens", end="", file=sys.stderr)
        count += put(out, code, end)
        print(file=sys.stderr)
    return count


def put(out, code, ids):
    ids = array.array(code, ids)
    if sys.byteorder == "big":
        ids.byteswap()
    ids.tofile(out)
    return len(ids)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True, help="a tokenizer.json")
    parser.add_argument("--out", required=True, help="the .bin file to write; it appears when it is whole")
    parser.add_argument("--end-token", metavar="TEXT", help='a token of the tokenizer that ends each file, as "</s>" (default none)')
    parser.add_argument("--piece-bytes", type=int, default=1 << 20, help="text tokenized at once (default 1 MiB)")
    parser.add_argument("--vocab-size", type=int, help="the model's vocab_size, if it is larger than the tokenizer's")
    parser.add_argument("text", nargs="+", help="UTF-8 text files, or folders of them")
    args = parser.parse_args()
    if not args.out.endswith(".bin"):
        parser.error("--out must end in .bin: weir-train tells token files by it")
    part = args.out + ".part"
    written = {os.path.realpath(args.out), os.path.realpath(part)} # they may lie in a folder that is read
    texts = [file for path in args.text for file in files(path) if os.path.realpath(file) not in written]
    if not texts:
        parser.error("no file in " + ", ".join(args.text))
    tokenizer = open_tokenizer(parser, args.tokenizer)
    end = [token_id(parser, tokenizer, args.end_token)] if args.end_token else []
    vocab = max(tokenizer.get_vocab_size(), args.vocab_size or 0)
    code = "H" if vocab <= 65536 else "I"
    try:
        with open(part, "wb") as out:
            count = write(out, texts, tokenizer, code, args.piece_bytes, end)
        os.replace(part, args.out)
    except BaseException: # ctrl-C as well
        if os.path.exists(part):
            os.unlink(part)
        raise
    print(f"{args.out}: {count} tokens as uint{'16' if code == 'H' else '32'}")


if __name__ == "__main__":
    main()
