//! What a running Apache Kafka 4.4 answered to DescribeConfigs and IncrementalAlterConfigs, written down by
//! `compare/Describe.java`, against what this crate answers to the same.

use settings::{
    BrokerSettings, Change, Entry, Operation, Refusal, RefusalKind, Scope, Texts, apply_changes, check_broker_change,
    controller_refusal, describe_broker, describe_client_metrics, describe_cluster_default, describe_created_topic,
    describe_group, describe_topic, validate_client_metrics, validate_group_overrides, validate_topic_overrides,
};
use std::collections::BTreeMap;

const DESCRIBE: &str = include_str!("../golden/describe.txt");
const ERRORS: &str = include_str!("../golden/errors.txt");

/// The settings of a node and of everything on it.
struct Node {
    broker: BrokerSettings,
    /// By resource kind and name, as stored in the metadata log.
    stored: BTreeMap<(String, String), Texts>,
}

fn texts(pairs: &[(&str, &str)]) -> Texts {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

impl Node {
    /// The node as Describe.java found it: its file, and the one cluster default that formatting with eligible leader
    /// replicas writes.
    fn reference() -> Node {
        let lines = DESCRIBE.lines().filter_map(|line| line.strip_prefix("P|")?.split_once('|'));
        let file = lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let mut stored = BTreeMap::new();
        stored.insert(("BROKER".to_owned(), String::new()), texts(&[("min.insync.replicas", "1")]));
        let mut node = Node { broker: BrokerSettings::from_file(&file).unwrap(), stored };
        node.publish();
        node
    }

    fn get(&self, kind: &str, name: &str) -> Texts {
        self.stored.get(&(kind.to_owned(), name.to_owned())).cloned().unwrap_or_default()
    }

    fn publish(&mut self) {
        self.broker = self.broker.with_dynamic(&self.get("BROKER", ""), &self.get("BROKER", "1")).0;
    }

    /// A change's whole way: the broker's check, the controller's, the store, the image.
    fn alter(&mut self, kind: &str, resource: &str, change: Change<'_>) -> Result<(), Refusal> {
        let scope = match kind {
            "TOPIC" => Scope::Topic,
            "BROKER" => Scope::Broker,
            "GROUP" => Scope::Group,
            _ => Scope::ClientMetrics,
        };
        if scope == Scope::Broker {
            check_broker_change(&self.broker, !resource.is_empty(), &[change])?;
        }
        let before = self.get(kind, resource);
        let mut after = before.clone();
        for (name, value) in apply_changes(scope, &before, &[change])? {
            if scope == Scope::Broker {
                controller_refusal(resource.is_empty(), &name, value.as_deref(), true).map_or(Ok(()), Err)?;
            }
            match value {
                Some(value) => after.insert(name, value),
                None => after.remove(&name),
            };
        }
        match scope {
            Scope::Topic => validate_topic_overrides(&after, &before, &self.broker, 16 << 20)?,
            Scope::Group => validate_group_overrides(&after, &self.broker)?,
            Scope::ClientMetrics => validate_client_metrics(&after)?,
            Scope::Broker => {}
        }
        self.stored.insert((kind.to_owned(), resource.to_owned()), after);
        self.publish();
        Ok(())
    }

    fn describe(&self, kind: &str, resource: &str) -> Vec<Entry> {
        let stored = self.get(kind, resource);
        match (kind, resource) {
            ("TOPIC", _) => describe_topic(&stored, &self.broker).unwrap(),
            ("BROKER", "") => describe_cluster_default(&self.broker),
            ("BROKER", _) => describe_broker(&self.broker),
            ("GROUP", _) => describe_group(&stored, &self.broker).unwrap(),
            _ => describe_client_metrics(&stored).unwrap(),
        }
    }
}

fn shown(value: &Option<String>) -> String {
    value.as_ref().map_or("~".to_owned(), |value| format!("={value}"))
}

fn lines_of(entries: &[Entry]) -> Vec<String> {
    let mut lines = Vec::new();
    for entry in entries {
        let kind = entry.kind.map_or("UNKNOWN", settings::Kind::name);
        let (value, source) = (shown(&entry.value), entry.source.name());
        lines.push(format!("E|{}|{value}|{source}|{}|{}|{kind}", entry.name, entry.read_only, entry.sensitive));
        for synonym in &entry.synonyms {
            lines.push(format!("S|{}|{}|{}", synonym.name, shown(&synonym.value), synonym.source.name()));
        }
    }
    lines
}

fn operation(name: &str) -> Operation {
    match name {
        "SET" => Operation::Set,
        "DELETE" => Operation::Delete,
        "APPEND" => Operation::Append,
        _ => Operation::Subtract,
    }
}

/// Plays the recording: changes are made, and every described resource is compared line by line.
fn replay() -> (Node, usize) {
    let mut node = Node::reference();
    let mut compared = 0;
    let mut lines = DESCRIBE.lines().filter(|line| !line.starts_with("P|")).peekable();
    while let Some(line) = lines.next() {
        let fields: Vec<&str> = line.split('|').collect();
        match fields.as_slice() {
            ["D", kind, resource, op, name, value] => {
                let change = Change { name, operation: operation(op), value: value.strip_prefix('=') };
                node.alter(kind, resource, change).unwrap_or_else(|error| panic!("{line}: {error}"));
            }
            ["C", topic] => {
                let mut overrides = Texts::new();
                while let Some(next) = lines.next_if(|line| line.starts_with("O|")) {
                    let (name, value) = next[2..].split_once('|').unwrap();
                    overrides.insert(name.to_owned(), value.to_owned());
                }
                validate_topic_overrides(&overrides, &Texts::new(), &node.broker, 16 << 20).unwrap();
                for entry in describe_created_topic(&overrides, &node.broker) {
                    let (value, source) = (shown(&entry.value), entry.source.name());
                    let ours = format!("T|{}|{value}|{source}|{}|{}", entry.name, entry.read_only, entry.sensitive);
                    assert_eq!(lines.next(), Some(ours.as_str()), "{topic}: (theirs, ours)");
                    compared += 1;
                }
                node.stored.insert(("TOPIC".to_owned(), (*topic).to_owned()), overrides);
            }
            ["R", kind, resource] => {
                let mut expected = Vec::new();
                while let Some(next) = lines.next_if(|line| line.starts_with("E|") || line.starts_with("S|")) {
                    expected.push(next.to_owned());
                }
                let ours = lines_of(&node.describe(kind, resource));
                let differing = expected.iter().zip(&ours).find(|(theirs, ours)| theirs != ours);
                assert_eq!(differing, None, "{kind} {resource}: (theirs, ours)");
                assert_eq!(expected.len(), ours.len(), "{kind} {resource}");
                compared += expected.len();
            }
            _ => panic!("an unknown line in describe.txt: {line}"),
        }
    }
    (node, compared)
}

#[test]
fn describe_configs_answers_what_kafka_answered() {
    let (_, compared) = replay();
    assert!(compared > 1_700, "only {compared} lines were compared");
}

/// Whether a case is decided by the name of its resource or by the client, which is the caller's part and not this crate's.
fn is_about_the_resource(kind: &str, resource: &str) -> bool {
    let named_badly = resource.is_empty() && kind != "BROKER";
    let other_node = kind == "BROKER" && !matches!(resource, "" | "1");
    named_badly || other_node || matches!((kind, resource), ("TOPIC", "missing" | "a topic"))
}

#[test]
fn changes_are_refused_in_kafkas_words() {
    let (mut node, _) = replay();
    let mut compared = 0;
    for line in ERRORS.lines() {
        let fields: Vec<&str> = line.splitn(7, '|').collect();
        let &[kind, resource, op, name, value, error, message] = fields.as_slice() else {
            panic!("an unknown line in errors.txt: {line}");
        };
        if is_about_the_resource(kind, resource) {
            continue;
        }
        let change = Change { name, operation: operation(op), value: (op != "DELETE").then_some(value) };
        let ours = node.alter(kind, resource, change);
        match (error, &ours) {
            ("NONE", Ok(())) => {}
            ("INVALID_CONFIG", Err(Refusal { kind: RefusalKind::InvalidConfig, message: ours })) => {
                assert_eq!(ours, message)
            }
            ("INVALID_REQUEST", Err(Refusal { kind: RefusalKind::InvalidRequest, message: ours })) => {
                assert_eq!(ours, message)
            }
            _ => panic!("{line}\nours: {ours:?}"),
        }
        compared += 1;
    }
    assert!(compared > 90, "only {compared} cases were compared");
}
