//! The tables against Apache Kafka 4.4's own definitions. Needs Java and the folder of Kafka's jars:
//! `KAFKA_LIBS=... cargo test -p pollux-settings --test compare`.

use std::path::{Path, PathBuf};
use std::process::Command;

const TABLES: [&str; 4] = ["broker.txt", "topic.txt", "group.txt", "client_metrics.txt"];

#[test]
fn the_tables_are_kafkas_definitions() {
    let Some(libs) = std::env::var_os("KAFKA_LIBS") else {
        println!("skipped: KAFKA_LIBS does not name a folder of Apache Kafka 4.4's jars");
        return;
    };
    let room = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("settings-tables");
    let run = Command::new("java")
        .arg("-cp")
        .arg(Path::new(&libs).join("*"))
        .arg(room.join("compare/Extract.java"))
        .arg(&output)
        .output()
        .expect("java runs");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    for table in TABLES {
        let theirs = std::fs::read_to_string(output.join(table)).expect("the program wrote its tables");
        let ours = std::fs::read_to_string(room.join("table").join(table)).expect("the table is there");
        let mut pairs = theirs.lines().zip(ours.lines());
        assert_eq!(pairs.find(|(theirs, ours)| theirs != ours), None, "{table}: (theirs, ours)");
        assert_eq!(theirs.lines().count(), ours.lines().count(), "{table}");
    }
}
