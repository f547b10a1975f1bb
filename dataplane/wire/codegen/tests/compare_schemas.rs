//! Compares `../schema` with the schema files inside Apache Kafka's jars, field by field. `KAFKA_LIBS` names the folder of
//! the jars; without it the test says in one line that it skips.
//!
//! Left out on purpose: the prose (`about`), and `zeroCopy`, which chooses a Java type and changes no byte.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use wire_codegen::{Field, Message, Schema, Struct, Versions};

/// One of Kafka's schemas and the jar it lies in.
struct Theirs {
    jar: String,
    json: Value,
}

#[test]
fn our_schemas_are_kafkas() {
    let Some(libs) = std::env::var_os("KAFKA_LIBS") else {
        println!("SKIPPED: compare_schemas needs KAFKA_LIBS, the folder of Apache Kafka 4.4.0's jars");
        return;
    };
    let ours = Schema::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../schema")).unwrap();
    let theirs = read_jars(&PathBuf::from(libs));
    let mut differences = Vec::new();
    for name in theirs.keys().filter(|name| ours.find(name).is_none()) {
        differences.push(format!("{name} is missing here"));
    }
    for message in &ours.messages {
        match theirs.get(&message.name) {
            Some(theirs) => compare_message(message, theirs, &mut differences),
            None => differences.push(format!("{} is not one of Kafka's", message.name)),
        }
    }
    assert_eq!(differences, Vec::<String>::new());
    assert_eq!(theirs.len(), 286);
    println!("{} messages compared", theirs.len());
}

/// The comparison itself must see every kind of difference.
#[test]
fn a_difference_is_seen() {
    let json = r#"{"apiKey": 1, "type": "metadata", "name": "A", "validVersions": "0-2", "flexibleVersions": "1+",
        "fields": [{"name": "X", "type": "int32", "versions": "0+", "default": "0x10", "ignorable": true},
                   {"name": "Y", "type": "[]B", "versions": "1+", "nullableVersions": "2+", "fields": [
                     {"name": "Z", "type": "string", "versions": "1+", "mapKey": true, "entityType": "topicName"}]},
                   {"name": "T", "type": "bool", "taggedVersions": "1+", "tag": 0, "default": true}]}"#;
    let theirs = Theirs { jar: "kafka-metadata".to_owned(), json: serde_json::from_str(json).unwrap() };
    let same = "record A id=1 versions=0-2 flexible=1+ family=metadata
  X int32 0+ default=16 ignorable
  Y []B 1+ nullable=2+
    Z string 1+ key entity=topicName
  T bool 1+ tag=0 default=true
";
    let differences = |text: &str| {
        let mut found = Vec::new();
        let ours = Schema::from_texts([("a.schema", text)]).unwrap();
        compare_message(&ours.messages[0], &theirs, &mut found);
        found
    };
    assert_eq!(differences(same), Vec::<String>::new());
    let changes = [
        ("id=1", "id=2"),
        ("0-2", "0-1"),
        ("flexible=1+", "flexible=0+"),
        ("family=metadata", "family=group"),
        ("X int32", "X int64"),
        ("default=16", "default=17"),
        (" ignorable", ""),
        ("Y []B 1+ nullable=2+", "Y []B 1+"),
        ("Y []B 1+", "Y []B 0+"),
        ("Z string", "W string"),
        (" key", ""),
        ("=topicName", "=groupId"),
        (" default=true", ""),
        ("T bool 1+ tag=0", "T bool 1+"),
        ("    Z string 1+ key entity=topicName\n", "    Z string 1+ key entity=topicName\n    V int8 1+\n"),
    ];
    for (from, to) in changes {
        assert!(!differences(&same.replace(from, to)).is_empty(), "{from} to {to} was not seen");
    }
}

fn read_jars(libs: &Path) -> BTreeMap<String, Theirs> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(libs).unwrap_or_else(|e| panic!("{}: {e}", libs.display())) {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        let Some(jar) = file.strip_suffix("-4.4.0.jar").filter(|jar| jar.starts_with("kafka")) else { continue };
        let mut archive = zip::ZipArchive::new(std::fs::File::open(&path).unwrap()).unwrap();
        for index in 0..archive.len() {
            let mut entry = archive.by_index(index).unwrap();
            let folder = ["common/message/", "common/metadata/", "message/"];
            let name = entry.name().unwrap().into_owned();
            if !name.ends_with(".json") || !folder.iter().any(|f| name.starts_with(f)) {
                continue;
            }
            let text = std::io::read_to_string(&mut entry).unwrap();
            let json: Value = serde_json::from_str(&without_comments(&text)).unwrap();
            found.insert(word(&json["name"]), Theirs { jar: jar.to_owned(), json });
        }
    }
    found
}

/// Kafka's JSON has comments to the end of the line.
fn without_comments(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let (mut quoted, mut escaped, mut end) = (false, false, line.len());
        for (at, c) in line.char_indices() {
            match c {
                '"' if !escaped => quoted = !quoted,
                '/' if !quoted && line[at..].starts_with("//") => {
                    end = at;
                    break;
                }
                _ => {}
            }
            escaped = c == '\\' && !escaped;
        }
        out.push_str(&line[..end]);
        out.push('\n');
    }
    out
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn versions(value: &Value) -> Versions {
    Versions::parse(value.as_str().unwrap_or("none")).unwrap()
}

struct Report<'a> {
    place: String,
    differences: &'a mut Vec<String>,
}

impl Report<'_> {
    fn same<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, ours: T, theirs: T) {
        if ours != theirs {
            self.differences.push(format!("{}: {what} is {ours:?} here and {theirs:?} in Kafka", self.place));
        }
    }
}

fn compare_message(ours: &Message, theirs: &Theirs, differences: &mut Vec<String>) {
    let json = &theirs.json;
    let place = format!("{}:{} {}", ours.place.file, ours.place.line, ours.name);
    let mut report = Report { place, differences };
    let kind = match word(&json["type"]).as_str() {
        "metadata" => "record".to_owned(),
        "coordinator-key" => "record-key".to_owned(),
        "coordinator-value" => "record-value".to_owned(),
        other => other.to_owned(),
    };
    let is_record = kind.starts_with("record");
    let family = is_record.then(|| family(&theirs.jar).to_owned());
    report.same("kind", ours.kind.word().to_owned(), kind);
    report.same("id", ours.id.map(i64::from), json["apiKey"].as_i64());
    report.same("family", ours.family.clone(), family);
    report.same("versions", ours.versions, versions(&json["validVersions"]));
    report.same("flexible", ours.flexible, versions(&json["flexibleVersions"]));
    report.same("latest-unstable", ours.latest_unstable, json["latestVersionUnstable"].as_bool().unwrap_or(false));
    let listeners: BTreeSet<String> = json["listeners"].as_array().into_iter().flatten().map(word).collect();
    report.same("listeners", ours.listeners.iter().cloned().collect(), listeners);

    let mut structs = BTreeMap::new();
    for common in json["commonStructs"].as_array().into_iter().flatten() {
        structs.insert(word(&common["name"]), (versions(&common["versions"]), true, &common["fields"]));
    }
    for common in json["commonStructs"].as_array().into_iter().flatten() {
        collect_structs(&common["fields"], &mut structs);
    }
    collect_structs(&json["fields"], &mut structs);
    let declared: BTreeSet<&String> = structs.keys().collect();
    report.same("structs", ours.structs.iter().map(|s| &s.name).collect(), declared);
    compare_fields(ours, &ours.name, &ours.fields, &json["fields"], report.differences);
    for (name, (versions, common, fields)) in structs {
        if let Some(ours_struct) = ours.find_struct(&name) {
            compare_struct(ours, ours_struct, versions, common, fields, report.differences);
        }
    }
}

fn family(jar: &str) -> &'static str {
    match jar {
        "kafka-metadata" => "metadata",
        "kafka-storage" => "remote-log",
        "kafka-group-coordinator" => "group",
        "kafka-transaction-coordinator" => "transaction",
        "kafka-share-coordinator" => "share",
        _ => "",
    }
}

/// Structs declared where a field uses them.
fn collect_structs<'a>(fields: &'a Value, structs: &mut BTreeMap<String, (Versions, bool, &'a Value)>) {
    for field in fields.as_array().into_iter().flatten() {
        if field["fields"].as_array().is_some_and(|inner| !inner.is_empty()) {
            let name = word(&field["type"]).trim_start_matches("[]").to_owned();
            structs.insert(name, (field_versions(field), false, &field["fields"]));
            collect_structs(&field["fields"], structs);
        }
    }
}

fn field_versions(field: &Value) -> Versions {
    let written = if field["versions"].is_null() { &field["taggedVersions"] } else { &field["versions"] };
    versions(written)
}

fn compare_struct(
    message: &Message,
    ours: &Struct,
    theirs: Versions,
    common: bool,
    fields: &Value,
    differences: &mut Vec<String>,
) {
    let place = format!("{}:{} {}", ours.place.file, ours.place.line, ours.name);
    let mut report = Report { place, differences };
    report.same("versions", ours.versions, theirs);
    report.same("declared on its own", ours.common, common);
    compare_fields(message, &ours.name, &ours.fields, fields, differences);
}

fn compare_fields(message: &Message, owner: &str, ours: &[Field], theirs: &Value, differences: &mut Vec<String>) {
    let empty = Vec::new();
    let theirs = theirs.as_array().unwrap_or(&empty);
    let names: Vec<String> = theirs.iter().map(|f| word(&f["name"])).collect();
    let place = format!("{} {owner}", message.place.file);
    let mut report = Report { place, differences };
    report.same("fields", ours.iter().map(|f| f.name.clone()).collect(), names);
    for (ours, theirs) in ours.iter().zip(theirs) {
        let place = format!("{}:{} {owner}.{}", ours.place.file, ours.place.line, ours.name);
        let mut report = Report { place, differences: report.differences };
        let versions_here = field_versions(theirs);
        report.same("type", ours.kind.to_string(), word(&theirs["type"]));
        report.same("versions", ours.versions, versions_here);
        report.same("nullable", ours.nullable, versions(&theirs["nullableVersions"]));
        report.same("tag", ours.tag.map(u64::from), theirs["tag"].as_u64());
        let tagged = if ours.tag.is_some() { ours.versions } else { Versions::NONE };
        report.same("tagged versions", tagged, versions(&theirs["taggedVersions"]));
        report.same(
            "default",
            default_of(ours.default.as_deref(), ours),
            default_of(json_default(theirs).as_deref(), ours),
        );
        report.same("ignorable", ours.ignorable, theirs["ignorable"].as_bool().unwrap_or(false));
        report.same("key", ours.map_key, theirs["mapKey"].as_bool().unwrap_or(false));
        report.same("entity", ours.entity.clone(), theirs["entityType"].as_str().map(str::to_owned));
        let flexible = (!theirs["flexibleVersions"].is_null()).then(|| versions(&theirs["flexibleVersions"]));
        report.same("flexible", ours.flexible, flexible);
    }
}

/// JSON's own null means no default; the text "null" means null.
fn json_default(field: &Value) -> Option<String> {
    match &field["default"] {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// One spelling for each default: the type's own is the empty text, numbers are decimal.
fn default_of(text: Option<&str>, field: &Field) -> String {
    let text = text.unwrap_or_default().to_ascii_lowercase();
    let number = match text.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    match (number, text.as_str()) {
        (Some(0), _) | (None, "false" | "") => String::new(),
        (Some(number), _) => number.to_string(),
        (None, _) if field.kind.to_string() == "bool" || text == "null" => text,
        (None, other) => panic!("{}: default {other:?}", field.name),
    }
}
