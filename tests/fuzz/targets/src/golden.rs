//! What Apache Kafka wrote (tests/golden of the repository): the valid inputs that ours are beside.

use std::path::{Path, PathBuf};

/// A message as Apache's own classes wrote it.
#[derive(Clone, Debug)]
pub struct GoldenMessage {
    pub name: String,
    pub version: i16,
    /// `p` stands for a record with what its log puts in front of it; others are bare.
    pub flavour: char,
    pub bytes: Vec<u8>,
}

pub fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden").join(name)
}

pub fn file(name: &str) -> Vec<u8> {
    let path = path(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every message of Kafka 4.4 in every version, several times.
pub fn messages() -> Vec<GoldenMessage> {
    let text = String::from_utf8(file("wire/messages.txt")).expect("golden files of messages are text");
    let parse = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        GoldenMessage {
            name: words[0].to_owned(),
            version: words[1].parse().expect("a version"),
            flavour: words[2].chars().next().expect("a flavour"),
            bytes: unhex(words[3]),
        }
    };
    text.lines().map(parse).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal digits");
    (0..text.len()).step_by(2).map(byte).collect()
}

/// The batches that Apache's writer and broker made, one a file.
pub fn batches() -> Vec<Vec<u8>> {
    let folder = path("batch");
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "batch"));
    files.sort();
    assert!(!files.is_empty(), "there are golden batches");
    files.iter().map(|file| std::fs::read(file).expect("a readable file")).collect()
}
