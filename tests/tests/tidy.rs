//! The sources themselves: lengths, the dependency rule between rooms, unsafe code, leftovers, module comments.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;
/// A function may be this long where a table or a state machine reads better whole; between the two it is reported.
const FUNCTION_LINES_REFUSED: usize = 110;
const ROOM_COMMENT_MAX: usize = 15;

/// What a room may depend on, beside crates from outside: the table of rooms. Dependencies of tests alone are free, but
/// for the rooms that `KEPT_APART` names.
const ALLOWED: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("arena", &["base"]),
    ("batch", &["base", "arena"]),
    ("settings", &["base"]),
    ("wire", &["base", "arena", "batch", "wire-codegen"]),
    ("wire-codegen", &[]),
    ("net", &["base", "arena", "dpdk-sys"]),
    ("handoff", &["base", "arena", "batch"]),
    ("offload", &["base"]),
    ("view", &["base", "settings", "link"]),
    ("session", &["base", "arena", "wire", "net", "handoff", "view", "settings", "link"]),
    ("partition", &["base", "arena", "batch", "handoff", "settings", "nvme-log"]),
    ("replication", &["base", "arena", "wire", "handoff", "view"]),
    (
        "data-core",
        &[
            "base",
            "arena",
            "batch",
            "settings",
            "wire",
            "net",
            "handoff",
            "offload",
            "view",
            "session",
            "partition",
            "replication",
            "link",
            "nvme-format",
            "nvme-plan",
            "nvme-log",
            "nvme-device",
        ],
    ),
    ("nvme-format", &["base"]),
    ("nvme-plan", &["base", "arena"]),
    ("nvme-log", &["base", "arena", "batch", "nvme-format", "nvme-plan"]),
    ("nvme-device", &["base", "arena", "nvme-plan", "spdk-sys"]),
    ("nvme-tools", &["base", "arena", "batch", "nvme-format", "nvme-plan", "nvme-log", "nvme-device"]),
    ("link", &["base"]),
    ("quorum", &["base", "batch", "wire"]),
    // The duties and the view that an image is told as are the link's messages.
    ("image", &["base", "wire", "settings", "link"]),
    ("controller", &["base", "batch", "wire", "image", "settings"]),
    ("coordinators", &["base", "batch", "wire", "image", "settings"]),
    ("node", &["base", "batch", "wire", "image", "settings", "link", "quorum", "controller", "coordinators", "view"]),
    // The dataplane's counter pages are mapped by the arena's code.
    (
        "daemon",
        &[
            "base",
            "arena",
            "batch",
            "wire",
            "image",
            "settings",
            "link",
            "quorum",
            "controller",
            "coordinators",
            "node",
        ],
    ),
];

/// Level 8, and perf: they see everything, or public APIs only.
const FREE: &[&str] = &["pollux", "tests", "perf", "sim", "fuzz-targets"];

/// Rooms where unsafe code has a place; each block of it carries its reason.
const UNSAFE_ALLOWED: &[&str] = &["dpdk-sys", "spdk-sys", "arena", "handoff", "net", "nvme-device"];

/// Words that say that something is not done.
const LEFTOVERS: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X:"),
    concat!("todo", "!("),
    concat!("unimple", "mented!("),
];

#[derive(Debug)]
struct Room {
    name: String,
    folder: PathBuf,
    needs: Vec<String>,
}

fn root() -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    root.canonicalize().expect("the workspace is there")
}

/// The workspace's crates and what each depends on, dependencies of tests left out.
fn rooms() -> Vec<Room> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline", "--manifest-path"])
        .arg(root().join("Cargo.toml"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let short = |name: &str| name.strip_prefix("pollux-").unwrap_or(name).to_owned();
    let packages = metadata["packages"].as_array().expect("a list of packages");
    let room = |package: &Value| {
        let dependencies = package["dependencies"].as_array().expect("a list of dependencies");
        let manifest = PathBuf::from(package["manifest_path"].as_str().expect("a path"));
        let needs = dependencies
            .iter()
            .filter(|dependency| dependency["kind"] != "dev" && !dependency["path"].is_null())
            .filter_map(|dependency| dependency["name"].as_str().map(short));
        Room {
            name: short(package["name"].as_str().expect("a name")),
            folder: manifest.parent().expect("a folder").to_owned(),
            needs: needs.collect(),
        }
    };
    packages.iter().map(room).collect()
}

/// Every Rust file below a folder, without those of crates inside it and of build output.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder can be read") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') && !path.join("Cargo.toml").is_file() {
                sources(&path, found);
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

fn all_sources() -> Vec<(PathBuf, String)> {
    let mut paths = Vec::new();
    for room in rooms() {
        sources(&room.folder, &mut paths);
    }
    paths.sort();
    paths.dedup();
    assert!(paths.len() > 50, "the sources were found");
    paths.into_iter().map(|path| (path.clone(), fs::read_to_string(&path).expect("a source can be read"))).collect()
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

fn none(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n{}", found.join("\n"));
}

#[test]
fn files_are_short() {
    let long = |(path, text): &(PathBuf, String)| {
        let lines = text.lines().count();
        (lines > FILE_LINES_MAX).then(|| format!("{}: {lines} lines", shown(path)))
    };
    none("files that are too long", &all_sources().iter().filter_map(long).collect::<Vec<_>>());
}

/// Functions with their lengths. The formatter puts a function's closing brace under the line that opens it.
fn functions(text: &str) -> Vec<(usize, usize, String)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        let words: Vec<&str> = code.split_whitespace().collect();
        let qualifiers = ["pub", "pub(crate)", "pub(super)", "const", "async", "unsafe", "extern", "\"C\""];
        let begins = words.iter().find(|word| !qualifiers.contains(word)) == Some(&"fn");
        if !begins || code.ends_with(';') || code.ends_with('}') {
            continue;
        }
        let closing = format!("{}}}", " ".repeat(indent));
        if let Some(length) = lines[number..].iter().position(|line| *line == closing) {
            found.push((number + 1, length + 1, code.to_owned()));
        }
    }
    found
}

#[test]
fn functions_are_short() {
    let mut refused = Vec::new();
    for (path, text) in all_sources() {
        for (line, length, code) in functions(&text) {
            let entry = format!("{}:{line}: {length} lines: {code}", shown(&path));
            if length > FUNCTION_LINES_REFUSED {
                refused.push(entry);
            } else if length > FUNCTION_LINES_MAX {
                println!("rather long: {entry}");
            }
        }
    }
    none("functions that are too long", &refused);
}

#[test]
fn function_lengths_are_counted() {
    let text = "pub fn a(\n    x: u8,\n) {\n    b();\n}\n\nimpl C {\n    fn d() {}\n    async fn e() {\n    }\n}\n";
    let found: Vec<(usize, usize)> = functions(text).iter().map(|(line, length, _)| (*line, *length)).collect();
    assert_eq!(found, [(1, 5), (9, 2)]);
}

#[test]
fn rooms_depend_on_what_they_may() {
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.iter().copied().collect();
    let mut wrong = Vec::new();
    for room in rooms() {
        if FREE.contains(&room.name.as_str()) {
            continue;
        }
        let Some(may) = allowed.get(room.name.as_str()) else {
            wrong.push(format!("{} is not in the table of rooms", room.name));
            continue;
        };
        let beyond = room.needs.iter().filter(|need| !may.contains(&need.as_str()));
        wrong.extend(beyond.map(|need| format!("{} may not depend on {need}", room.name)));
    }
    none("the dependency rule", &wrong);
}

#[test]
fn unsafe_code_stays_in_its_rooms() {
    let mut wrong = Vec::new();
    for room in rooms() {
        let mut paths = Vec::new();
        sources(&room.folder, &mut paths);
        let crate_roots = paths.iter().filter(|path| {
            let inner = path.strip_prefix(&room.folder).unwrap_or(path);
            // A library's executables beside it are bound by its lint.
            inner == Path::new("src/lib.rs")
                || (inner == Path::new("src/main.rs") && !room.folder.join("src/lib.rs").is_file())
        });
        for path in crate_roots {
            let text = fs::read_to_string(path).expect("a source can be read");
            let forbids = text.contains("#![forbid(unsafe_code)]");
            if !forbids && !UNSAFE_ALLOWED.contains(&room.name.as_str()) {
                wrong.push(format!("{} does not forbid unsafe code", shown(path)));
            }
        }
        for path in &paths {
            let text = fs::read_to_string(path).expect("a source can be read");
            wrong.extend(
                without_reason(&text)
                    .into_iter()
                    .map(|line| format!("{}:{line}: unsafe code without its reason (// SAFETY:)", shown(path))),
            );
        }
    }
    none("unsafe code", &wrong);
}

/// Lines where an unsafe block or impl begins and neither the line nor the comment right above says why.
fn without_reason(text: &str) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        let opens = code.contains(concat!("unsafe", " {")) || code.contains(concat!("unsafe", " impl"));
        if !opens || code.contains('"') {
            continue;
        }
        let above = lines[..number].iter().rev().take_while(|line| {
            let code = line.trim_start();
            // A statement may begin some lines above the block that it contains.
            code.starts_with("//") || !(code.is_empty() || code.ends_with(';') || code.ends_with('}'))
        });
        let says = |line: &&str| line.contains("SAFETY:") || line.contains("Safety:");
        if !says(line) && !above.take(12).any(says) {
            found.push(number + 1);
        }
    }
    found
}

#[test]
fn nothing_is_left_over() {
    let mut found = Vec::new();
    for (path, text) in all_sources() {
        for (number, line) in text.lines().enumerate() {
            if LEFTOVERS.iter().any(|word| line.contains(word)) {
                found.push(format!("{}:{}: {}", shown(&path), number + 1, line.trim()));
            }
        }
    }
    none("leftovers", &found);
}

#[test]
fn every_room_says_what_it_is() {
    let mut wrong = Vec::new();
    for room in rooms() {
        let library = room.folder.join("src/lib.rs");
        let path = if library.is_file() { library } else { room.folder.join("src/main.rs") };
        let text = fs::read_to_string(&path).unwrap_or_default();
        let comment = text.lines().take_while(|line| line.starts_with("//!")).count();
        if comment == 0 || comment > ROOM_COMMENT_MAX {
            wrong.push(format!("{}: a module comment of {comment} lines", shown(&path)));
        }
    }
    none("module comments", &wrong);
}

#[test]
fn every_file_begins_with_a_comment() {
    let bare = |(path, text): &(PathBuf, String)| {
        let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let inner = path.file_name().is_some_and(|name| name == "tests.rs" || name == "mod.rs" || name == "main.rs");
        (!first.starts_with("//") && !inner).then(|| shown(path))
    };
    none("files without a comment in front", &all_sources().iter().filter_map(bare).collect::<Vec<_>>());
}

#[test]
fn the_licence_is_apaches() {
    let licence = fs::read_to_string(root().join("LICENSE")).expect("a licence");
    assert!(licence.contains("Apache License") && licence.contains("Version 2.0, January 2004"));
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("a manifest");
    assert!(manifest.contains("license = \"Apache-2.0\""));
    for room in rooms() {
        let manifest = fs::read_to_string(room.folder.join("Cargo.toml")).expect("a manifest");
        assert!(manifest.contains("license.workspace = true"), "{} names its licence", room.name);
    }
}
