//! The table itself: every setting of Kafka 4.4, decoded once from the files in `table/`.

use crate::check::Check;
use crate::kind::{Importance, Kind, Mutability, Scope};
use crate::status::{self, Status};
use crate::value::{Invalid, Value};
use std::sync::LazyLock;

static CATALOG: LazyLock<Catalog> = LazyLock::new(Catalog::decode);

/// What a setting is when nobody set it.
#[derive(Clone, PartialEq, Debug)]
pub enum DefaultValue {
    /// It must be set.
    Required,
    Value(Value),
}

/// Another setting that stands in for one, and the factor that turns its unit into milliseconds where units differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Synonym {
    pub name: &'static str,
    pub factor: i64,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Setting {
    pub name: &'static str,
    pub scope: Scope,
    pub kind: Kind,
    pub importance: Importance,
    pub mutability: Mutability,
    /// Not listed by DescribeConfigs unless it was set.
    pub internal: bool,
    /// Dynamic only under `listener.name.NAME.`.
    pub listener_only: bool,
    /// May be set for one listener as the whole cluster's default.
    pub listener_cluster_wide: bool,
    /// Ends a name of the form `listener.name.NAME.MECHANISM.SETTING`.
    pub mechanism: bool,
    pub default: DefaultValue,
    /// The default as Kafka prints it; none for null and for a required setting.
    pub default_text: Option<&'static str>,
    pub check: Check,
    /// Of a topic's setting, the broker's in order; of a group's, the one of the broker; of a broker's own, all that
    /// mean the same, itself among them.
    pub synonyms: Vec<Synonym>,
    pub status: Status,
}

impl Setting {
    /// Parses and checks a value as Kafka would at this place.
    pub fn parse(&self, raw: &str) -> Result<Value, Invalid> {
        let mut value = Value::parse(self.name, raw, self.kind)?;
        if let (true, Value::List(entries)) = (self.check.removes_duplicates(), &mut value) {
            let all = std::mem::take(entries);
            for entry in all {
                if !entries.contains(&entry) {
                    entries.push(entry);
                }
            }
        }
        self.check.ensure(self.name, &value)?;
        Ok(value)
    }

    pub fn default_value(&self) -> Value {
        match &self.default {
            DefaultValue::Required => Value::Null,
            DefaultValue::Value(value) => value.clone(),
        }
    }

    /// One sentence for whoever asks DescribeConfigs for documentation: what Pollux does with this setting.
    pub fn documentation(&self) -> String {
        match self.status {
            Status::Honoured { but: None, .. } => "Honoured.".to_owned(),
            Status::Honoured { but: Some(but), .. } => format!("Honoured, but {but}."),
            Status::AcceptedWithoutEffect { why } => format!("Accepted without effect: {why}."),
            Status::Refused { why } => format!("Refused unless left at its default: {why}."),
        }
    }
}

/// All settings, sorted by name within their scope.
pub struct Catalog {
    broker: Vec<Setting>,
    /// Quotas of replication: they exist only as dynamic settings of a broker and are no part of its file.
    broker_quotas: Vec<Setting>,
    topic: Vec<Setting>,
    group: Vec<Setting>,
    client_metrics: Vec<Setting>,
}

impl Catalog {
    pub fn get() -> &'static Catalog {
        &CATALOG
    }

    /// All settings of a scope, sorted by name.
    pub fn settings(&self, scope: Scope) -> &[Setting] {
        match scope {
            Scope::Broker => &self.broker,
            Scope::Topic => &self.topic,
            Scope::Group => &self.group,
            Scope::ClientMetrics => &self.client_metrics,
        }
    }

    pub fn broker_quotas(&self) -> &[Setting] {
        &self.broker_quotas
    }

    pub fn find(&self, scope: Scope, name: &str) -> Option<&Setting> {
        self.position(scope, name).map(|at| &self.settings(scope)[at])
    }

    pub(crate) fn position(&self, scope: Scope, name: &str) -> Option<usize> {
        self.settings(scope).binary_search_by(|setting| setting.name.cmp(name)).ok()
    }

    /// A dynamic setting of a broker by the name it is altered under: plain, a quota, or below a listener's prefix.
    pub fn find_broker_dynamic(&self, name: &str) -> Option<&Setting> {
        let plain = |name: &str| {
            self.find(Scope::Broker, name).or_else(|| self.broker_quotas.iter().find(|quota| quota.name == name))
        };
        plain(name).or_else(|| plain(self.listener_base(name)?))
    }

    /// The base name below `listener.name.NAME.`, without the mechanism where the base carries one.
    pub(crate) fn listener_base<'a>(&self, name: &'a str) -> Option<&'a str> {
        let base = listener_suffix(name)?;
        let mechanism = self.broker.iter().find(|setting| setting.mechanism && base.ends_with(setting.name));
        Some(mechanism.map_or(base, |setting| &base[base.len() - setting.name.len()..]))
    }

    fn decode() -> Catalog {
        let mut broker = decode(Scope::Broker, include_str!("../table/broker.txt"));
        let quotas: Vec<bool> = broker.iter().map(|(flags, _)| flags.contains('q')).collect();
        let mut quota = quotas.iter();
        let broker_quotas =
            broker.extract_if(.., |_| *quota.next().unwrap_or(&false)).map(|(_, setting)| setting).collect();
        let plain = |decoded: Vec<(&str, Setting)>| {
            let mut settings: Vec<Setting> = decoded.into_iter().map(|(_, setting)| setting).collect();
            settings.sort_by_key(|setting| setting.name);
            settings
        };
        Catalog {
            broker: plain(broker),
            broker_quotas,
            topic: plain(decode(Scope::Topic, include_str!("../table/topic.txt"))),
            group: plain(decode(Scope::Group, include_str!("../table/group.txt"))),
            client_metrics: plain(decode(Scope::ClientMetrics, include_str!("../table/client_metrics.txt"))),
        }
    }
}

/// What follows `listener.name.NAME.` in a name that has that form.
pub(crate) fn listener_suffix(name: &str) -> Option<&str> {
    name.strip_prefix("listener.name.")?.split_once('.').map(|(_, base)| base)
}

/// The tables are part of the program: a line that cannot be read is a bug, and every test would meet it.
fn decode(scope: Scope, table: &'static str) -> Vec<(&'static str, Setting)> {
    let one =
        |line: &'static str| decode_line(scope, line).unwrap_or_else(|| panic!("bad line in a settings table: {line}"));
    table.lines().map(one).collect()
}

fn decode_line(scope: Scope, line: &'static str) -> Option<(&'static str, Setting)> {
    let fields: Vec<&'static str> = line.split('|').collect();
    let &[name, kind, importance, flags, default, check, synonyms] = fields.as_slice() else {
        return None;
    };
    let kind = Kind::named(kind)?;
    let default_text = default.strip_prefix('=');
    let default = match default_text {
        Some(text) => DefaultValue::Value(Value::parse(name, text, kind).ok()?),
        None if default == "~" => DefaultValue::Value(Value::Null),
        None => DefaultValue::Required,
    };
    let mutability = match scope {
        Scope::Broker if flags.contains(['c', 'q']) => Mutability::ClusterWide,
        Scope::Broker if flags.contains('b') => Mutability::PerBroker,
        Scope::Broker => Mutability::ReadOnly,
        _ => Mutability::ClusterWide,
    };
    let setting = Setting {
        name,
        scope,
        kind,
        importance: Importance::named(importance)?,
        mutability,
        internal: flags.contains('i'),
        listener_only: flags.contains('s'),
        listener_cluster_wide: flags.contains('k'),
        mechanism: flags.contains('m'),
        default,
        default_text,
        check: Check::decode(check)?,
        synonyms: synonyms.split(',').filter(|text| !text.is_empty()).map(decode_synonym).collect(),
        status: status::of(scope, name)?,
    };
    Some((flags, setting))
}

fn decode_synonym(text: &'static str) -> Synonym {
    let (name, factor) = text.split_once('*').unwrap_or((text, "1"));
    Synonym { name, factor: factor.parse().unwrap_or(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_kafkas() {
        let catalog = Catalog::get();
        assert_eq!(catalog.settings(Scope::Broker).len(), 379);
        assert_eq!(catalog.settings(Scope::Topic).len(), 38);
        assert_eq!(catalog.settings(Scope::Group).len(), 27);
        assert_eq!(catalog.settings(Scope::ClientMetrics).len(), 3);
        assert_eq!(catalog.broker_quotas().len(), 3);
    }

    #[test]
    fn lookups() {
        let catalog = Catalog::get();
        let setting = catalog.find(Scope::Topic, "segment.ms").unwrap();
        assert_eq!(setting.synonyms[1], Synonym { name: "log.roll.hours", factor: 3_600_000 });
        assert!(catalog.find(Scope::Topic, "num.partitions").is_none());
        let keystore = catalog.find_broker_dynamic("listener.name.x.ssl.keystore.password").unwrap();
        assert_eq!(keystore.name, "ssl.keystore.password");
        let jaas = catalog.find_broker_dynamic("listener.name.x.plain.sasl.jaas.config").unwrap();
        assert_eq!(jaas.name, "sasl.jaas.config");
        assert!(catalog.find_broker_dynamic("leader.replication.throttled.rate").is_some());
    }

    #[test]
    fn every_default_passes_its_own_check() {
        let catalog = Catalog::get();
        for setting in Scope::ALL.into_iter().flat_map(|scope| catalog.settings(scope)) {
            if let Some(text) = setting.default_text {
                let value = setting.parse(text).unwrap_or_else(|error| panic!("{}: {error}", setting.name));
                assert_eq!(value.text().as_deref(), Some(text), "{}", setting.name);
            }
        }
    }

    #[test]
    fn every_synonym_exists() {
        let catalog = Catalog::get();
        for setting in Scope::ALL.into_iter().flat_map(|scope| catalog.settings(scope)) {
            for synonym in &setting.synonyms {
                assert!(catalog.find(Scope::Broker, synonym.name).is_some(), "{}: {}", setting.name, synonym.name);
            }
        }
    }
}
