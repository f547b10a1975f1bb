//! What operators and clients may write as a setting: single values, changes of a resource's settings, and the file.

use crate::memory::bounded;
use settings::{
    BrokerSettings, Catalog, Change, NodeConfig, Operation, Scope, Setting, Texts, TopicSettings, apply_changes,
    check_broker_change, controller_refusal, describe_client_metrics, describe_created_topic, describe_group,
    describe_topic, replacement, validate_client_metrics, validate_group_overrides, validate_topic_overrides,
};
use std::sync::OnceLock;

const FACTOR: u64 = 512;
const BASE: u64 = 1 << 20;

fn all() -> &'static [&'static Setting] {
    static ALL: OnceLock<Vec<&'static Setting>> = OnceLock::new();
    ALL.get_or_init(|| Scope::ALL.into_iter().flat_map(|scope| Catalog::get().settings(scope)).collect())
}

/// The built-in configuration; made once, since it reads every default.
pub fn broker() -> &'static BrokerSettings {
    static BROKER: OnceLock<BrokerSettings> = OnceLock::new();
    BROKER.get_or_init(|| NodeConfig::laptop(&[]).expect("the built-in configuration is good").broker)
}

/// The number of a setting, then a text for it: what is accepted is printed, and accepted again as the same.
pub fn setting_value(data: &[u8]) {
    let Some((number, text)) = data.split_first_chunk::<2>() else { return };
    let setting = all()[usize::from(u16::from_be_bytes(*number)) % all().len()];
    let text = String::from_utf8_lossy(text);
    bounded(data, FACTOR, BASE, || {
        let Ok(value) = setting.parse(&text) else { return };
        let Some(printed) = value.text() else { return };
        crate::depth::reached();
        let again = setting.parse(&printed);
        // As in Kafka a text is trimmed before it is split: the last of a list, once a double behind it has gone, may end
        // in what is taken off then, and be nothing else.
        if printed.trim_matches(|c| c <= ' ') == printed {
            assert_eq!(again.expect("what was printed is a value").text(), Some(printed));
        }
    });
}

/// The scope, then lines of NAME=VALUE, of which the first character says what is done with it.
pub fn setting_changes(data: &[u8]) {
    let Some((scope, lines)) = data.split_first() else { return };
    let text = String::from_utf8_lossy(lines);
    let scope = Scope::ALL[usize::from(*scope) % Scope::ALL.len()];
    let changes: Vec<Change<'_>> = text.lines().filter_map(change).take(40).collect();
    let (broker, none) = (broker(), Texts::new());
    bounded(data, FACTOR, 4 * BASE, || {
        let Ok(new) = apply_changes(scope, &none, &changes) else { return };
        let stored: Texts = new.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        let given: Vec<(&str, Option<&str>)> = changes.iter().map(|change| (change.name, change.value)).collect();
        let _ = apply_changes(scope, &stored, &replacement(&stored, &given));
        crate::depth::reached();
        match scope {
            Scope::Topic => {
                let _ = describe_created_topic(&stored, broker);
                if validate_topic_overrides(&stored, &none, broker, 16 << 20).is_ok() {
                    TopicSettings::resolve(&stored, broker).expect("what is valid resolves");
                    describe_topic(&stored, broker).expect("what is valid is described");
                }
            }
            Scope::Broker => {
                for own in [true, false] {
                    let _ = check_broker_change(broker, own, &changes);
                    for (name, value) in &stored {
                        let _ = controller_refusal(!own, name, Some(value), true);
                    }
                }
                let _ = broker.with_dynamic(&stored, &none);
                let _ = broker.with_dynamic(&none, &stored);
            }
            Scope::Group => {
                if validate_group_overrides(&stored, broker).is_ok() {
                    describe_group(&stored, broker).expect("what is valid is described");
                }
            }
            Scope::ClientMetrics => {
                if validate_client_metrics(&stored).is_ok() {
                    describe_client_metrics(&stored).expect("what is valid is described");
                }
            }
        }
    });
}

fn change(line: &str) -> Option<Change<'_>> {
    let mut letters = line.chars();
    let operation = match letters.next()? {
        '-' => Operation::Delete,
        '+' => Operation::Append,
        '~' => Operation::Subtract,
        _ => Operation::Set,
    };
    let (name, value) = letters.as_str().split_once('=')?;
    Some(Change { name, operation, value: Some(value).filter(|value| *value != "null") })
}

/// A configuration file, and behind each zero byte an override of the command line.
pub fn config_file(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut parts = text.split('\0');
    let file = parts.next().unwrap_or_default();
    let overrides: Vec<String> = parts.take(20).map(str::to_owned).collect();
    bounded(data, FACTOR, 16 * BASE, || match NodeConfig::read("f.toml", file, &overrides) {
        Ok(_) => crate::depth::reached(),
        Err(error) => assert!(!error.reason.is_empty()),
    });
}

pub fn setting_value_seeds() -> Vec<Vec<u8>> {
    const TEXTS: [&str; 12] = [
        "",
        "-1",
        "9223372036854775807",
        "1.5e3",
        "true",
        "compact,delete",
        " 5 ",
        "0:1,2:3",
        "PLAINTEXT://h:9092",
        "zstd",
        "CreateTime",
        "*",
    ];
    let seed = |number: usize, text: &str| [&(number as u16).to_be_bytes(), text.as_bytes()].concat();
    let default = |(number, setting): (usize, &&Setting)| seed(number, setting.default_text.unwrap_or("x"));
    let mut seeds: Vec<Vec<u8>> = all().iter().enumerate().map(default).collect();
    seeds.extend((0..all().len()).map(|number| seed(number, TEXTS[number % TEXTS.len()])));
    seeds
}

pub fn setting_changes_seeds() -> Vec<Vec<u8>> {
    let of = |scope: Scope, lines: &str| {
        let at = Scope::ALL.iter().position(|known| *known == scope).expect("it is one of all");
        [&[at as u8], lines.as_bytes()].concat()
    };
    let mut seeds = vec![
        of(Scope::Topic, "=cleanup.policy=compact\n=retention.ms=5\n=compression.type=zstd\n=max.message.bytes=1000"),
        of(Scope::Topic, "+cleanup.policy=compact\n~leader.replication.throttled.replicas=0:1\n-retention.ms=x"),
        of(Scope::Topic, "=min.compaction.lag.ms=7\n=max.compaction.lag.ms=6\n=remote.storage.enable=true"),
        of(Scope::Broker, "=log.retention.ms=5\n=listener.name.x.ssl.keystore.type=PEM\n=num.io.threads=9"),
        of(
            Scope::Broker,
            "=max.connections.per.ip.overrides=h:5\n+log.cleanup.policy=compact\n=advertised.listeners=x",
        ),
        of(Scope::Group, "=consumer.session.timeout.ms=45000\n=share.auto.offset.reset=by_duration:PT1H"),
        of(Scope::ClientMetrics, "=metrics=org.apache\n=interval.ms=1000\n=match=client_id=a.*"),
    ];
    for scope in Scope::ALL {
        let settings = Catalog::get().settings(scope);
        let line = |setting: &Setting| format!("={}={}", setting.name, setting.default_text.unwrap_or("x"));
        seeds.extend(settings.chunks(12).map(|some| of(scope, &some.iter().map(line).collect::<Vec<_>>().join("\n"))));
    }
    seeds
}

pub fn config_file_seeds() -> Vec<Vec<u8>> {
    let file = |name: &str| crate::golden::file(&format!("../../hw-configs/{name}"));
    let small = "[node]\nid = 3\ncores = [0, 1]\nmetrics = \"off\"\n[data]\nsize = \"512MiB\"\nslab = \"auto\"\n\
                 [kafka]\n\"num.partitions\" = 3\n\"log.dirs\" = [\"a\", \"b\"]\n\0durability=cache\0cores=[0]\0data.io=\"uring\"";
    vec![file("laptop.toml"), file("server-example.toml"), small.as_bytes().to_vec()]
}
