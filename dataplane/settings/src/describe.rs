//! What DescribeConfigs answers, for each kind of resource. Entries come sorted by name (Kafka's order is that of a hash
//! table, which no client can rely on).

use crate::broker::{BrokerSettings, Texts};
use crate::catalog::{Catalog, Setting, listener_suffix};
use crate::kind::{Kind, Mutability, Scope, Source};
use crate::topic;
use crate::value::{Invalid, Value};
use std::borrow::Cow;

#[derive(Clone, PartialEq, Debug)]
pub struct Entry {
    pub name: Cow<'static, str>,
    /// None for null and for what must not leave the node.
    pub value: Option<String>,
    pub source: Source,
    pub read_only: bool,
    pub sensitive: bool,
    /// None where no definition knows the name.
    pub kind: Option<Kind>,
    /// Where the value could have come from, the one it came from first.
    pub synonyms: Vec<SynonymEntry>,
    /// Where the documentation is to come from, which only some requests ask for.
    setting: Option<&'static Setting>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct SynonymEntry {
    pub name: Cow<'static, str>,
    pub value: Option<String>,
    pub source: Source,
}

impl Entry {
    fn of(setting: &'static Setting, value: &Value, synonyms: Vec<SynonymEntry>) -> Entry {
        let sensitive = setting.kind.is_sensitive();
        Entry {
            name: Cow::Borrowed(setting.name),
            value: value.text().filter(|_| !sensitive),
            source: synonyms.first().map_or(Source::Default, |first| first.source),
            read_only: setting.scope == Scope::Broker && setting.mutability == Mutability::ReadOnly,
            sensitive,
            kind: Some(setting.kind),
            synonyms,
            setting: Some(setting),
        }
    }

    pub fn kind_code(&self) -> i8 {
        self.kind.map_or(Kind::UNKNOWN_CODE, Kind::code)
    }

    pub fn documentation(&self) -> Option<String> {
        self.setting.map(Setting::documentation)
    }
}

/// A topic that sets `overrides`, on this broker.
pub fn describe_topic(overrides: &Texts, broker: &BrokerSettings) -> Result<Vec<Entry>, Invalid> {
    let values = topic::effective(overrides, broker)?;
    let mut entries = Vec::with_capacity(values.len());
    for (setting, value) in Catalog::get().settings(Scope::Topic).iter().zip(&values) {
        let set = overrides.contains_key(setting.name);
        if setting.internal && !set {
            continue;
        }
        // Only the first of the broker's names counts here: Kafka lists its chain, and only from its own entry on.
        let first = setting.synonyms.first();
        let mut synonyms = first.map_or(Vec::new(), |synonym| broker_synonyms(synonym.name, broker, false));
        if set {
            let name = Cow::Borrowed(setting.name);
            synonyms.insert(0, SynonymEntry { name, value: value.text(), source: Source::DynamicTopic });
        }
        entries.push(Entry::of(setting, value, synonyms));
    }
    Ok(entries)
}

/// What CreateTopics answers for a new topic: no synonyms, the source by the finest layer that any synonym is set in,
/// and texts as they were written.
pub fn describe_created_topic(overrides: &Texts, broker: &BrokerSettings) -> Vec<Entry> {
    let layers = [
        (broker.own(), Source::DynamicBroker),
        (broker.cluster(), Source::DynamicDefaultBroker),
        (broker.file(), Source::StaticBroker),
    ];
    let listed = |setting: &&'static Setting| !setting.internal || overrides.contains_key(setting.name);
    let settings = Catalog::get().settings(Scope::Topic).iter().filter(listed);
    let entry = |setting: &'static Setting| {
        let set = || Some((overrides.get(setting.name)?.clone(), Source::DynamicTopic));
        let inherited = |(layer, source): &(&Texts, Source)| {
            let synonym = setting.synonyms.iter().find_map(|one| Some((layer.get(one.name)?, one.factor)));
            synonym.map(|(text, factor)| (in_milliseconds(text, factor), *source))
        };
        let found = set().or_else(|| layers.iter().find_map(inherited));
        let mut entry = Entry::of(setting, &setting.default_value(), Vec::new());
        if let Some((text, source)) = found {
            (entry.value, entry.source) = (Some(text), source);
        }
        entry
    };
    settings.map(entry).collect()
}

/// A text in a coarser unit, turned into milliseconds; any other text stays as it is.
fn in_milliseconds(text: &str, factor: i64) -> String {
    match crate::java::trim(text).parse::<i64>() {
        Ok(number) if factor != 1 => number.saturating_mul(factor).to_string(),
        _ => text.to_owned(),
    }
}

/// This broker by its id: everything, defaults too.
pub fn describe_broker(broker: &BrokerSettings) -> Vec<Entry> {
    let catalog = Catalog::get();
    let listed = |setting: &&'static Setting| !setting.internal;
    let known = catalog.settings(Scope::Broker).iter().filter(listed).map(|setting| {
        let value = broker.value(setting.name).unwrap_or(&Value::Null);
        Entry::of(setting, value, broker_synonyms(setting.name, broker, setting.kind.is_sensitive()))
    });
    let is_listed = |name: &str| catalog.find(Scope::Broker, name).is_some_and(|setting| !setting.internal);
    let others = broker.merged().iter().filter(|(name, _)| !is_listed(name));
    let mut entries: Vec<Entry> =
        known.chain(others.map(|(name, value)| raw_entry(name, value, broker, false))).collect();
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    entries
}

/// The cluster's defaults for brokers: only what was set dynamically.
pub fn describe_cluster_default(broker: &BrokerSettings) -> Vec<Entry> {
    broker.cluster().iter().map(|(name, value)| raw_entry(name, value, broker, true)).collect()
}

/// A group that sets `overrides`; the broker's settings of the group's protocols are its defaults.
pub fn describe_group(overrides: &Texts, broker: &BrokerSettings) -> Result<Vec<Entry>, Invalid> {
    let mut entries = Vec::new();
    for setting in Catalog::get().settings(Scope::Group) {
        let set = overrides.get(setting.name);
        let synonym = setting.synonyms.first().map(|synonym| synonym.name);
        let set_in_broker = synonym.is_some_and(|name| broker.merged().contains_key(name));
        if setting.internal && set.is_none() && !set_in_broker {
            continue;
        }
        let value = match set {
            Some(text) => setting.parse(text)?,
            None => group_default(setting, broker),
        };
        let mut synonyms = match synonym {
            Some(name) => broker_synonyms(name, broker, false),
            None => default_synonym(setting),
        };
        if set.is_some() {
            let name = Cow::Borrowed(setting.name);
            synonyms.insert(0, SynonymEntry { name, value: value.text(), source: Source::Group });
        }
        entries.push(Entry::of(setting, &value, synonyms));
    }
    Ok(entries)
}

/// A subscription to client metrics that sets `overrides`.
pub fn describe_client_metrics(overrides: &Texts) -> Result<Vec<Entry>, Invalid> {
    let one = |setting: &'static Setting| {
        let Some(text) = overrides.get(setting.name) else {
            return Ok(Entry::of(setting, &setting.default_value(), Vec::new()));
        };
        let value = setting.parse(text)?;
        let own =
            SynonymEntry { name: Cow::Borrowed(setting.name), value: value.text(), source: Source::ClientMetrics };
        Ok(Entry::of(setting, &value, vec![own]))
    };
    Catalog::get().settings(Scope::ClientMetrics).iter().map(one).collect()
}

/// A group's value where it sets nothing. The broker lists assignors of streams groups; a group uses one, the first.
pub(crate) fn group_default(setting: &Setting, broker: &BrokerSettings) -> Value {
    let Some(value) = setting.synonyms.first().and_then(|synonym| broker.value(synonym.name)) else {
        return setting.default_value();
    };
    match value {
        Value::List(entries) if setting.kind != Kind::List => {
            entries.first().map_or(Value::Null, |first| Value::Text(first.as_str().into()))
        }
        other => other.clone(),
    }
}

fn default_synonym(setting: &'static Setting) -> Vec<SynonymEntry> {
    let entry = |value| SynonymEntry { name: Cow::Borrowed(setting.name), value: Some(value), source: Source::Default };
    setting.default_value().text().map(entry).into_iter().collect()
}

/// All names that mean the same as this one, by layer; what stands before the name's own first entry is left out, as
/// Kafka does.
fn broker_synonyms(name: &str, broker: &BrokerSettings, sensitive: bool) -> Vec<SynonymEntry> {
    let catalog = Catalog::get();
    let layers = [
        (broker.own(), Source::DynamicBroker),
        (broker.cluster(), Source::DynamicDefaultBroker),
        (broker.file(), Source::StaticBroker),
    ];
    let names = synonym_names(name);
    let mut entries = Vec::new();
    let shown = |value: &str| if sensitive { None } else { Some(value.to_owned()) };
    for (layer, source) in layers {
        let set = names.iter().filter_map(|name| layer.get(name.as_ref()).map(|value| (name, value)));
        entries.extend(set.map(|(name, value)| SynonymEntry { name: name.clone(), value: shown(value), source }));
    }
    let defaults = names.iter().filter_map(|name| Some((name, catalog.find(Scope::Broker, name)?.default_text?)));
    entries.extend(defaults.map(|(name, value)| SynonymEntry {
        name: name.clone(),
        value: shown(value),
        source: Source::Default,
    }));
    let own = entries.iter().position(|entry| entry.name == name).unwrap_or(entries.len());
    entries.split_off(own)
}

fn synonym_names(name: &str) -> Vec<Cow<'static, str>> {
    let catalog = Catalog::get();
    match catalog.find(Scope::Broker, name) {
        Some(setting) if !setting.synonyms.is_empty() => {
            setting.synonyms.iter().map(|synonym| Cow::Borrowed(synonym.name)).collect()
        }
        Some(setting) => vec![Cow::Borrowed(setting.name)],
        None => {
            let base = listener_suffix(name).and_then(|_| catalog.listener_base(name));
            let names = [Some(name), base];
            names.into_iter().flatten().map(|name| Cow::Owned(name.to_owned())).collect()
        }
    }
}

/// An entry whose value is told as it was written: of an unlisted name, and of the cluster's defaults.
fn raw_entry(name: &str, value: &str, broker: &BrokerSettings, cluster_only: bool) -> Entry {
    let catalog = Catalog::get();
    let setting = catalog.find_broker_dynamic(name);
    let sensitive = setting.is_none_or(|setting| setting.kind.is_sensitive());
    let mut synonyms = broker_synonyms(name, broker, sensitive);
    if cluster_only {
        synonyms.retain(|synonym| synonym.source == Source::DynamicDefaultBroker);
    }
    let plain = setting.filter(|setting| setting.name == name);
    Entry {
        name: Cow::Owned(name.to_owned()),
        value: (!sensitive).then(|| value.to_owned()),
        source: synonyms.first().map_or(Source::Default, |first| first.source),
        read_only: plain.is_none_or(|setting| setting.mutability == Mutability::ReadOnly),
        sensitive,
        kind: setting.map(|setting| setting.kind),
        synonyms,
        setting: plain,
    }
}
