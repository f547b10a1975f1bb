//! A setting is called honoured only where a test shows it, and that test exists: as `crate folder::file::function`, or as
//! `conformance::case` of the cases that run on Apache Kafka and on Pollux alike.

use settings::{BrokerSettings, Catalog, Scope, Texts, TopicSettings};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries {
        let path = entry.expect("a folder is listed").path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// Whether the text holds a test function of that name.
fn has_test(text: &str, function: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let named = format!("fn {function}()");
    (1..lines.len()).any(|at| lines[at].starts_with(&named) && lines[at - 1] == "#[test]")
}

/// A case of real clients: `java/CLASS/method`, or a name in one of the tables of cases.
fn is_case(case: &str) -> bool {
    let tests = root().join("tests");
    if let Some((class, method)) = case.strip_prefix("java/").and_then(|name| name.split_once('/')) {
        let mut letters = class.chars();
        let class: String = letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect();
        let text = std::fs::read_to_string(tests.join(format!("conformance/java/{class}Cases.java")));
        return text.is_ok_and(|text| text.contains(&format!("public static Object {method}(Node ")));
    }
    let mut sources = Vec::new();
    files(&tests.join("src"), &mut sources);
    let listed = format!("(\"{case}\",");
    sources.iter().any(|path| std::fs::read_to_string(path).is_ok_and(|text| text.contains(&listed)))
}

fn exists(test: &str) -> bool {
    if let Some(case) = test.strip_prefix("conformance::") {
        return is_case(case);
    }
    let Some([folder, file, function]) = test.split("::").collect::<Vec<_>>().first_chunk::<3>().copied() else {
        return false;
    };
    let folder = root().join(folder);
    let mut sources = Vec::new();
    if folder.join("Cargo.toml").is_file() {
        files(&folder, &mut sources);
    }
    let mut of_name = sources.iter().filter(|path| path.file_name().is_some_and(|name| *name == *format!("{file}.rs")));
    of_name.any(|path| std::fs::read_to_string(path).is_ok_and(|text| has_test(&text, function)))
}

#[test]
fn every_honoured_setting_names_tests_that_exist() {
    let catalog = Catalog::get();
    let settings = Scope::ALL.into_iter().flat_map(|scope| catalog.settings(scope)).chain(catalog.broker_quotas());
    let named: BTreeSet<&str> = settings.flat_map(|setting| setting.status.tests()).collect();
    assert!(named.len() > 40, "so many are honoured: {}", named.len());
    let missing: Vec<&&str> = named.iter().filter(|test| !exists(test)).collect();
    assert!(missing.is_empty(), "no such tests: {missing:#?}");
}

#[test]
fn a_name_that_does_not_exist_is_found_out() {
    assert!(exists("dataplane/settings::honoured::a_name_that_does_not_exist_is_found_out"));
    assert!(exists("conformance::java/admin/topics") && exists("conformance::trap/append-time"));
    for name in [
        "dataplane/settings::honoured::has_test",
        "dataplane/settings::honoured::a_name_that",
        "dataplane/settings::golden::a_name_that_does_not_exist_is_found_out",
        "dataplane::honoured::a_name_that_does_not_exist_is_found_out",
        "nowhere::honoured::a_name_that_does_not_exist_is_found_out",
        "conformance::java/admin/topic",
        "conformance::java/nobody/topics",
        "conformance::trap/append",
        "honoured",
    ] {
        assert!(!exists(name), "{name}");
    }
}

/// What a topic gets where it sets nothing, and each setting of a broker that is honoured as a topic's default, at a value
/// that is not the default.
#[test]
fn a_topic_that_sets_nothing_obeys_its_broker() {
    let resolve = |more: Option<(&str, &str)>| {
        let minimal = [("node.id", "1"), ("process.roles", "broker"), ("controller.listener.names", "C")];
        let texts = minimal.into_iter().chain(more).map(|(name, value)| (name.to_owned(), value.to_owned()));
        let broker = BrokerSettings::from_file(&Texts::from_iter(texts)).expect("good settings");
        TopicSettings::resolve(&Texts::new(), &broker).expect("nothing is set")
    };
    let silent = resolve(None);
    let own = "dataplane/settings::honoured::a_topic_that_sets_nothing_obeys_its_broker";
    let brokers = Catalog::get().settings(Scope::Broker).iter();
    let claimed: BTreeSet<&str> =
        brokers.filter(|setting| setting.status.tests().any(|test| test == own)).map(|setting| setting.name).collect();
    let tried = [
        ("compression.gzip.level", "3"),
        ("compression.type", "lz4"),
        ("compression.zstd.level", "7"),
        ("log.flush.interval.messages", "12"),
        ("log.message.timestamp.after.max.ms", "1234"),
        ("log.message.timestamp.before.max.ms", "4321"),
        ("log.message.timestamp.type", "LogAppendTime"),
        ("log.segment.bytes", "2000000"),
        ("max.decompressed.message.bytes", "2000000"),
        ("min.insync.replicas", "2"),
    ];
    assert_eq!(claimed, tried.map(|(name, _)| name).into(), "each is tried below");
    let resolved = tried.map(|pair| resolve(Some(pair)));
    for ((name, _), topic) in tried.iter().zip(&resolved) {
        assert_ne!(*topic, silent, "{name}");
    }
    let [gzip, codec, zstd, flush, after, before, times, segment, inflated, replicas] = resolved;
    assert_eq!((gzip.compression_gzip_level, zstd.compression_zstd_level), (Some(3), 7));
    assert_eq!(codec.compression_type, settings::CompressionType::Lz4);
    assert_eq!((flush.flush_messages, segment.segment_bytes), (12, 2_000_000));
    assert_eq!((after.message_timestamp_after_max_ms, before.message_timestamp_before_max_ms), (1234, 4321));
    assert_eq!(times.message_timestamp_type, settings::TimestampType::LogAppendTime);
    assert_eq!((inflated.max_decompressed_message_bytes, replicas.min_insync_replicas), (2_000_000, 2));
}
