//! Reading the configuration file and the overrides of the command line into items that remember where they stand. The
//! file is TOML: [node], [data], [network] are ours; [kafka] holds Kafka's settings under their quoted names.

use crate::catalog::{Catalog, Setting, listener_suffix};
use crate::java;
use crate::kind::{Kind, Scope};
use crate::own::{OWN_SETTINGS, OwnSetting};
use std::fmt;
use toml::de::{DeTable, DeValue};

/// Why a configuration is refused, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigError {
    pub place: Place,
    pub reason: String,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    Line {
        file: String,
        line: usize,
    },
    Override {
        text: String,
    },
    /// A rule between settings that no one line breaks.
    Whole,
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line { file, line } => write!(out, "{file}:{line}"),
            Place::Override { text } => write!(out, "--set {text}"),
            Place::Whole => out.write_str("configuration"),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.place, self.reason)
    }
}

impl std::error::Error for ConfigError {}

/// A value as it was written.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Written {
    Text(String),
    Integer(i64),
    Float(f64),
    Boolean(bool),
    List(Vec<Written>),
}

/// What an item sets.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Key {
    Own(&'static OwnSetting),
    /// A Kafka setting under the name that was written, which may have a listener's prefix.
    Kafka(&'static Setting, String),
}

impl Key {
    pub(crate) fn is_own(&self, table: &str, key: &str) -> bool {
        matches!(self, Key::Own(own) if own.table == table && own.key == key)
    }

    pub(crate) fn is_kafka(&self, name: &str) -> bool {
        matches!(self, Key::Kafka(_, written) if written == name)
    }

    /// The pairs that say the same in two ways.
    pub(crate) fn is_twin_of(&self, other: &Key) -> bool {
        let group = |key: &Key| {
            if key.is_own("node", "id") || key.is_kafka("node.id") || key.is_kafka("broker.id") {
                1
            } else if key.is_own("network", "listen") || key.is_kafka("listeners") {
                2
            } else {
                0
            }
        };
        self == other || (group(self) != 0 && group(self) == group(other))
    }
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Item {
    pub key: Key,
    pub value: Written,
    pub place: Place,
}

impl Item {
    pub(crate) fn refuse<T>(&self, reason: impl Into<String>) -> Result<T, ConfigError> {
        Err(ConfigError { place: self.place.clone(), reason: reason.into() })
    }
}

/// Reads a file; TOML itself refuses a key that stands twice.
pub(crate) fn read_file(file: &str, text: &str) -> Result<Vec<Item>, ConfigError> {
    let at = |offset: usize| {
        let line = text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count() + 1;
        Place::Line { file: file.to_owned(), line }
    };
    let root = DeTable::parse(text).map_err(|error| ConfigError {
        place: error.span().map_or(Place::Whole, |span| at(span.start)),
        reason: error.message().to_owned(),
    })?;
    let mut items = Vec::new();
    for (name, value) in root.get_ref().iter() {
        let place = at(name.span().start);
        let table_name = name.get_ref().as_ref();
        let DeValue::Table(table) = value.get_ref() else {
            let reason =
                format!("{table_name} stands outside a table; the tables are [node], [data], [network] and [kafka]");
            return Err(ConfigError { place, reason });
        };
        for (key, value) in table.iter() {
            let place = at(key.span().start);
            let fail = |reason: String| ConfigError { place: place.clone(), reason };
            let key = match table_name {
                "kafka" => kafka_key(key.get_ref().as_ref(), value.get_ref()),
                _ => own_key(table_name, key.get_ref().as_ref()),
            };
            let key = key.map_err(&fail)?;
            let value = written(value.get_ref()).map_err(&fail)?;
            items.push(Item { key, value, place });
        }
    }
    Ok(items)
}

/// Reads `KEY=VALUE` of the command line: a Kafka name, one of our keys, or ours with its table before it. The value is
/// TOML; a bare word is a text.
pub(crate) fn read_override(text: &str) -> Result<Item, ConfigError> {
    let place = Place::Override { text: text.to_owned() };
    let fail = |reason: String| ConfigError { place: place.clone(), reason };
    let Some((name, value)) = text.split_once('=') else {
        return Err(fail("write KEY=VALUE".to_owned()));
    };
    let (name, value) = (name.trim(), value.trim());
    let own = OWN_SETTINGS.iter().find(|own| own.key == name || name == format!("{}.{}", own.table, own.key));
    let key = match (kafka_setting(name), own) {
        (Some(setting), _) => Key::Kafka(setting, name.to_owned()),
        (None, Some(own)) => Key::Own(own),
        (None, None) => return Err(fail(unknown(name, all_names()))),
    };
    let line = format!("v = {value}");
    let parsed = match DeTable::parse(&line) {
        Ok(table) => match table.get_ref().iter().next() {
            Some((_, value)) => written(value.get_ref()).map_err(&fail)?,
            None => Written::Text(value.to_owned()),
        },
        Err(error) if value.starts_with(['"', '\'', '[', '{']) => return Err(fail(error.message().to_owned())),
        Err(_) => Written::Text(value.to_owned()),
    };
    Ok(Item { key, value: parsed, place })
}

fn kafka_setting(name: &str) -> Option<&'static Setting> {
    let catalog = Catalog::get();
    let below_listener = || {
        listener_suffix(name)?;
        catalog.find(Scope::Broker, catalog.listener_base(name)?)
    };
    catalog.find(Scope::Broker, name).or_else(below_listener)
}

fn kafka_key(name: &str, value: &DeValue<'_>) -> Result<Key, String> {
    if matches!(value, DeValue::Table(_)) {
        return Err(format!("write Kafka's names whole and in quotes, such as \"{name}.…\", not as a table"));
    }
    match kafka_setting(name) {
        Some(setting) => Ok(Key::Kafka(setting, name.to_owned())),
        None => {
            let names = Catalog::get().settings(Scope::Broker).iter().map(|setting| setting.name.to_owned());
            Err(unknown(name, names.collect()))
        }
    }
}

fn own_key(table: &str, key: &str) -> Result<Key, String> {
    let mut of_table = OWN_SETTINGS.iter().filter(|own| own.table == table).peekable();
    if of_table.peek().is_none() {
        return Err(format!("there is no table [{table}]; the tables are [node], [data], [network] and [kafka]"));
    }
    match of_table.clone().find(|own| own.key == key) {
        Some(own) => Ok(Key::Own(own)),
        None => Err(unknown(key, of_table.map(|own| own.key.to_owned()).collect())),
    }
}

fn all_names() -> Vec<String> {
    let kafka = Catalog::get().settings(Scope::Broker).iter().map(|setting| setting.name.to_owned());
    kafka.chain(OWN_SETTINGS.iter().map(|own| own.key.to_owned())).collect()
}

fn unknown(name: &str, known: Vec<String>) -> String {
    let near = known.into_iter().map(|known| (distance(name, &known), known)).min();
    match near.filter(|(distance, _)| *distance <= 3) {
        Some((_, near)) => format!("unknown setting {name}; did you mean {near}?"),
        None => format!("unknown setting {name}"),
    }
}

/// Levenshtein's distance in bytes.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, one) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, other) in b.bytes().enumerate() {
            let change = diagonal + usize::from(one != other);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

fn written(value: &DeValue<'_>) -> Result<Written, String> {
    Ok(match value {
        DeValue::String(text) => Written::Text(text.to_string()),
        DeValue::Integer(number) => {
            let parsed = i64::from_str_radix(number.as_str(), number.radix());
            Written::Integer(parsed.map_err(|_| format!("{number} is not a 64-bit integer"))?)
        }
        DeValue::Float(number) => {
            let parsed = number.as_str().parse();
            Written::Float(parsed.map_err(|_| format!("{number} is not a number"))?)
        }
        DeValue::Boolean(value) => Written::Boolean(*value),
        DeValue::Array(values) => {
            Written::List(values.iter().map(|value| written(value.get_ref())).collect::<Result<_, _>>()?)
        }
        DeValue::Datetime(_) | DeValue::Table(_) => return Err("no setting takes a date or a table".to_owned()),
    })
}

impl Written {
    /// The text Kafka's file would hold. A size with a unit is turned into bytes where the setting counts bytes.
    pub(crate) fn kafka_text(&self, setting: &Setting) -> Result<String, String> {
        let counts_bytes = matches!(setting.kind, Kind::Int | Kind::Long)
            && setting.name.split('.').any(|word| matches!(word, "bytes" | "size"));
        Ok(match self {
            Written::Text(text) if counts_bytes && text.trim_end().ends_with('B') => size(text)?.to_string(),
            Written::Text(text) => text.clone(),
            Written::Integer(number) => number.to_string(),
            Written::Float(number) => java::double_text(*number),
            Written::Boolean(value) => value.to_string(),
            Written::List(values) => {
                let texts = values.iter().map(|value| value.kafka_text(setting)).collect::<Result<Vec<_>, _>>()?;
                texts.join(",")
            }
        })
    }

    pub(crate) fn bytes(&self) -> Result<u64, String> {
        match self {
            Written::Integer(number) => u64::try_from(*number).map_err(|_| "a size is not negative".to_owned()),
            Written::Text(text) => size(text),
            _ => Err("write a size: an integer of bytes or a text such as \"512MiB\"".to_owned()),
        }
    }
}

/// `512MiB`, `64KiB`, or plain digits.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim() {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return Err(format!("{text} is not a size; units are KiB, MiB, GiB and TiB")),
    };
    let number: u64 = number.parse().map_err(|_| format!("{text} is not a size"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text} is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size("512MiB"), Ok(512 << 20));
        assert_eq!(size(" 4096 "), Ok(4096));
        assert_eq!(size("1 GiB"), Ok(1 << 30));
        for bad in ["", "MiB", "1MB", "1.5GiB", "-1", "99999999TiB"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn errors_name_the_line_and_what_was_meant() {
        let error = |text: &str| read_file("f.toml", text).unwrap_err().to_string();
        assert_eq!(error("[node]\nid = 1\nidd = 2\n"), "f.toml:3: unknown setting idd; did you mean id?");
        assert_eq!(
            error("[kafka]\n\n\"num.partition\" = 2\n"),
            "f.toml:3: unknown setting num.partition; did you mean num.partitions?"
        );
        assert!(error("[nod]\nid = 1\n").starts_with("f.toml:2: there is no table [nod]"));
        assert!(error("id = 1\n").starts_with("f.toml:1: id stands outside"));
        assert!(error("[kafka]\nnum.partitions = 3\n").starts_with("f.toml:2: write Kafka's names whole"));
        assert!(error("[node]\nid = 1\nid = 2\n").starts_with("f.toml:3: "));
        assert!(error("[node\n").starts_with("f.toml:1: "));
    }

    #[test]
    fn overrides_take_toml_and_bare_words() {
        let value = |text: &str| read_override(text).unwrap().value;
        assert_eq!(value("durability=cache"), Written::Text("cache".to_owned()));
        assert_eq!(value("node.cores=[0, 2]"), Written::List(vec![Written::Integer(0), Written::Integer(2)]));
        assert_eq!(value("listeners=PLAINTEXT://127.0.0.1:1"), Written::Text("PLAINTEXT://127.0.0.1:1".to_owned()));
        assert_eq!(value("size = \"1GiB\""), Written::Text("1GiB".to_owned()));
        assert!(read_override("cores=[0").unwrap_err().to_string().starts_with("--set cores=[0: "));
        assert!(read_override("durabilty=cache").unwrap_err().reason.contains("did you mean durability?"));
        assert!(read_override("cores").is_err());
    }
}
