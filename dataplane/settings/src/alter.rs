//! Changes: the four operations of IncrementalAlterConfigs, and what a broker and the controller refuse before a change
//! of a broker's settings is stored.

use crate::broker::{BrokerSettings, Layer, LayerRefusal, Texts, check_dynamic_value, layer_refusal};
use crate::catalog::Catalog;
use crate::java::split_dropping_trailing;
use crate::kind::{Kind, Scope};
use crate::reconfigure::{ensure_reconfigurable, ensure_within_pollux};
use crate::value::Refusal;
use std::collections::BTreeSet;

/// The longest value a record of the metadata log may carry, in Java's characters.
const VALUE_LENGTH_MAX: usize = 32_767;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    Set,
    Delete,
    Append,
    Subtract,
}

impl Operation {
    pub fn from_code(code: i8) -> Option<Operation> {
        Some(match code {
            0 => Operation::Set,
            1 => Operation::Delete,
            2 => Operation::Append,
            3 => Operation::Subtract,
            _ => return None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Operation::Set => "SET",
            Operation::Delete => "DELETE",
            Operation::Append => "APPEND",
            Operation::Subtract => "SUBTRACT",
        }
    }
}

/// One change of one setting, as the request carries it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change<'a> {
    pub name: &'a str,
    pub operation: Operation,
    pub value: Option<&'a str>,
}

/// Works out new values (none deletes) of a resource whose stored settings are `stored`, in the request's order. A
/// change that changes nothing is left out, but for a broker, where Kafka writes it again so that files are reread.
pub fn apply_changes(
    scope: Scope,
    stored: &Texts,
    changes: &[Change<'_>],
) -> Result<Vec<(String, Option<String>)>, Refusal> {
    ensure_well_formed(changes)?;
    let mut result = Vec::with_capacity(changes.len());
    for change in changes {
        let current = stored.get(change.name);
        let given = change.value.unwrap_or_default();
        let new = match change.operation {
            Operation::Set => Some(given.to_owned()),
            Operation::Delete => None,
            Operation::Append | Operation::Subtract => {
                let setting = Catalog::get().find(scope, change.name).filter(|setting| setting.kind == Kind::List);
                let Some(setting) = setting else {
                    let (operation, name) = (change.operation.name(), change.name);
                    return Err(Refusal::config(format!(
                        "Can't {operation} to key {name} because its type is not LIST."
                    )));
                };
                let old = current.map(String::as_str).or(setting.default_text).unwrap_or_default();
                Some(edit_list(old, change.operation, given))
            }
        };
        if new.as_ref().is_some_and(|value| value.encode_utf16().count() > VALUE_LENGTH_MAX) {
            let why =
                "The configuration value cannot be added because it exceeds the maximum value size of 32767 bytes.";
            return Err(Refusal::config(why));
        }
        if scope == Scope::Broker || current != new.as_ref() {
            result.push((change.name.to_owned(), new));
        }
    }
    Ok(result)
}

/// The changes that make a resource's settings exactly `given`, which is what the older AlterConfigs asks for.
pub fn replacement<'a>(stored: &'a Texts, given: &[(&'a str, Option<&'a str>)]) -> Vec<Change<'a>> {
    let set = given.iter().map(|(name, value)| Change { name, operation: Operation::Set, value: *value });
    let kept = |name: &str| given.iter().any(|(given, _)| *given == name);
    let gone = stored.keys().filter(|name| !kept(name));
    set.chain(gone.map(|name| Change { name, operation: Operation::Delete, value: None })).collect()
}

/// What every request must satisfy, whatever the resource.
fn ensure_well_formed(changes: &[Change<'_>]) -> Result<(), Refusal> {
    let names: BTreeSet<&str> = changes.iter().map(|change| change.name).collect();
    if names.len() != changes.len() {
        return Err(Refusal::request("Error due to duplicate config keys"));
    }
    let without = |change: &&Change<'_>| change.operation != Operation::Delete && change.value.is_none();
    let without: Vec<&str> = changes.iter().filter(without).map(|change| change.name).collect();
    if without.is_empty() {
        return Ok(());
    }
    Err(Refusal::request(format!("Null value not supported for : {}", without.join(", "))))
}

fn edit_list(old: &str, operation: Operation, given: &str) -> String {
    let mut entries: Vec<&str> = old.split(',').filter(|entry| !entry.is_empty()).collect();
    for entry in split_dropping_trailing(given) {
        let at = entries.iter().position(|old| *old == entry);
        match (operation, at) {
            (Operation::Append, None) => entries.push(entry),
            (Operation::Subtract, Some(at)) => {
                entries.remove(at);
            }
            _ => {}
        }
    }
    entries.join(",")
}

/// What the broker that received a change of its own settings (`own`) or of the cluster's defaults checks before it
/// forwards the change to the controller.
pub fn check_broker_change(broker: &BrokerSettings, own: bool, changes: &[Change<'_>]) -> Result<(), Refusal> {
    ensure_well_formed(changes)?;
    let mut layer = if own { broker.own().clone() } else { broker.cluster().clone() };
    for change in changes {
        apply_to_layer(&mut layer, change)?;
    }
    ensure_allowed(&layer, if own { Layer::Own } else { Layer::Cluster })?;
    for (name, value) in &layer {
        check_dynamic_value(name, value).map_err(|error| Refusal::request(error.0))?;
    }
    let (cluster, mine) = if own { (broker.cluster().clone(), layer) } else { (layer, broker.own().clone()) };
    let tried = broker.tried_with(cluster, mine).map_err(|error| Refusal::request(error.0))?;
    ensure_reconfigurable(broker, &tried)?;
    ensure_within_pollux(broker, &tried)
}

fn apply_to_layer(layer: &mut Texts, change: &Change<'_>) -> Result<(), Refusal> {
    let given = change.value.unwrap_or_default();
    let word = match change.operation {
        Operation::Set => {
            layer.insert(change.name.to_owned(), given.to_owned());
            return Ok(());
        }
        Operation::Delete => {
            layer.remove(change.name);
            return Ok(());
        }
        Operation::Append => "append",
        Operation::Subtract => "subtract",
    };
    let Some(setting) = Catalog::get().find(Scope::Broker, change.name) else {
        return Err(Refusal::config(format!("Unknown config name: {}", change.name)));
    };
    if setting.kind != Kind::List {
        return Err(Refusal::config(format!("Config value {word} is not allowed for config key: {}", change.name)));
    }
    let old = layer.get(change.name).map(String::as_str).or(setting.default_text).unwrap_or_default();
    let new = edit_list(old, change.operation, given);
    layer.insert(change.name.to_owned(), new);
    Ok(())
}

/// Names are told of the first rule that any breaks, all that break it together.
fn ensure_allowed(layer: &Texts, at: Layer) -> Result<(), Refusal> {
    for refusal in LayerRefusal::IN_KAFKAS_ORDER {
        let breaking: Vec<&str> =
            layer.keys().map(String::as_str).filter(|name| layer_refusal(name, at) == Some(refusal)).collect();
        if !breaking.is_empty() {
            return Err(Refusal::request(format!("{}: [{}]", refusal.message(), breaking.join(", "))));
        }
    }
    Ok(())
}

/// What the controller refuses of a broker's (`cluster` for the default resource) new value, whoever checked it before.
pub fn controller_refusal(cluster: bool, name: &str, value: Option<&str>, elr_enabled: bool) -> Option<Refusal> {
    if name != "min.insync.replicas" || !elr_enabled {
        return None;
    }
    match (cluster, value) {
        (false, _) => Some(Refusal::config("Broker-level min.insync.replicas cannot be altered while ELR is enabled.")),
        (true, None) => {
            Some(Refusal::config("Cluster-level min.insync.replicas cannot be removed while ELR is enabled."))
        }
        (true, Some(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(pairs: &[(&str, &str)]) -> Texts {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn change<'a>(name: &'a str, operation: Operation, value: &'a str) -> Change<'a> {
        Change { name, operation, value: Some(value) }
    }

    #[test]
    fn lists_are_edited_as_kafka_does() {
        assert_eq!(edit_list("delete", Operation::Append, "compact"), "delete,compact");
        assert_eq!(edit_list("delete", Operation::Append, "delete,delete"), "delete");
        assert_eq!(edit_list("a,b,a", Operation::Subtract, "a,c"), "b,a");
        assert_eq!(edit_list("a", Operation::Subtract, "a"), "");
    }

    #[test]
    fn appending_starts_from_the_default() {
        let changes = [change("cleanup.policy", Operation::Append, "compact")];
        let new = apply_changes(Scope::Topic, &Texts::new(), &changes).unwrap();
        assert_eq!(new, [("cleanup.policy".to_owned(), Some("delete,compact".to_owned()))]);
    }

    #[test]
    fn what_changes_nothing_is_left_out_but_for_brokers() {
        let stored = texts(&[("retention.ms", "5")]);
        let same = [change("retention.ms", Operation::Set, "5")];
        assert_eq!(apply_changes(Scope::Topic, &stored, &same).unwrap(), []);
        assert_eq!(apply_changes(Scope::Broker, &stored, &same).unwrap().len(), 1);
        let gone = Change { name: "segment.ms", operation: Operation::Delete, value: None };
        assert_eq!(apply_changes(Scope::Topic, &stored, &[gone]).unwrap(), []);
    }

    #[test]
    fn a_replacement_deletes_what_is_not_given() {
        let stored = texts(&[("a", "1"), ("b", "2")]);
        let changes = replacement(&stored, &[("b", Some("3"))]);
        let gone = Change { name: "a", operation: Operation::Delete, value: None };
        assert_eq!(changes, [change("b", Operation::Set, "3"), gone]);
    }

    #[test]
    fn requests_are_well_formed() {
        let twice = [change("a", Operation::Set, "1"), change("a", Operation::Set, "2")];
        assert_eq!(
            apply_changes(Scope::Topic, &Texts::new(), &twice).unwrap_err().message,
            "Error due to duplicate config keys"
        );
        let null = [Change { name: "a", operation: Operation::Set, value: None }];
        assert_eq!(
            apply_changes(Scope::Topic, &Texts::new(), &null).unwrap_err().message,
            "Null value not supported for : a"
        );
        let long = "x".repeat(32_768);
        let long = [change("a", Operation::Set, &long)];
        assert!(apply_changes(Scope::Topic, &Texts::new(), &long).unwrap_err().message.contains("32767"));
    }

    #[test]
    fn pollux_refuses_what_it_has_not() {
        let file = texts(&[("node.id", "1"), ("process.roles", "broker"), ("controller.listener.names", "C")]);
        let broker = BrokerSettings::from_file(&file).unwrap();
        let listeners = [change("listeners", Operation::Set, "PLAINTEXT://:1")];
        let refusal = check_broker_change(&broker, true, &listeners).unwrap_err();
        assert!(refusal.message.ends_with("takes effect at a start only"), "{refusal}");
        let builder = [change("principal.builder.class", Operation::Set, "x.Y")];
        assert!(check_broker_change(&broker, true, &builder).is_err());
    }
}
