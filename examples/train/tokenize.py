#!/usr/bin/env python3
"""Turns text into token files for weir-train --data.

  pip install tokenizers
  examples/train/tokenize.py --tokenizer model/tokenizer.json --out data.bin text.txt folder

The file holds little-endian token ids without a header: uint16 if the vocabulary has at most 65536
entries, else uint32, which is how weir-train reads it. Of folders
all files are taken, in order of their names, folders below in their place, links not followed: the
order of weir-train --data. Text is read in pieces of --piece-bytes, cut at line ends.
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True, help="a tokenizer.json")
    parser.add_argument("--out", required=True, help="the .bin file to write")
    parser.add_argument("--piece-bytes", type=int, default=1 << 20, help="text tokenized at once (default 1 MiB)")
    parser.add_argument("--vocab-size", type=int, help="the model's vocab_size, if it is larger than the tokenizer's")
    parser.add_argument("text", nargs="+", help="UTF-8 text files, or folders of them")
    args = parser.parse_args()
    if not args.out.endswith(".bin"):
        parser.error("--out must end in .bin: weir-train tells token files by it")
    texts = [file for path in args.text for file in files(path)]
    if not texts:
        parser.error("no file in " + ", ".join(args.text))
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(args.tokenizer)
    vocab = max(tokenizer.get_vocab_size(), args.vocab_size or 0)
    code = "H" if vocab <= 65536 else "I"
    count = 0
    with open(args.out, "wb") as out:
        for path in texts:
            for text in pieces(path, args.piece_bytes):
                ids = array.array(code, tokenizer.encode(text, add_special_tokens=False).ids)
                if sys.byteorder == "big":
                    ids.byteswap()
                ids.tofile(out)
                count += len(ids)
                print(f"\r{path}: {count} tokens", end="", file=sys.stderr)
            print(file=sys.stderr)
    print(f"{args.out}: {count} tokens as uint{'16' if code == 'H' else '32'}")


if __name__ == "__main__":
    main()
