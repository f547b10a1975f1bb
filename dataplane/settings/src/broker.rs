//! The settings one broker obeys: its file, below the cluster's dynamic defaults, below its own dynamic settings.

use crate::catalog::{Catalog, DefaultValue, Setting, listener_suffix};
use crate::consistent::{connections_per_ip, ensure_consistent};
#[cfg(test)]
use crate::kind::Kind;
use crate::kind::{Mutability, Scope};
use crate::topic;
use crate::value::{Invalid, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Settings as they were written down: names and unparsed values.
pub type Texts = BTreeMap<String, String>;

/// The dynamic setting of a broker that was stored but is not obeyed, as Kafka skips it with a line in its log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ignored {
    pub name: String,
    pub why: String,
}

/// An immutable snapshot; a clone is another handle.
#[derive(Clone)]
pub struct BrokerSettings {
    inner: Arc<Inner>,
}

struct Inner {
    file: Texts,
    cluster: Texts,
    own: Texts,
    /// The file overlaid by both dynamic layers.
    merged: Texts,
    /// By position in the catalog.
    values: Vec<Value>,
    typed: BrokerValues,
    /// What a topic gets where it sets nothing, by position in the catalog.
    topic_defaults: Vec<Value>,
}

impl fmt::Debug for BrokerSettings {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let passwords =
            |name: &str| Catalog::get().find_broker_dynamic(name).is_none_or(|setting| setting.kind.is_sensitive());
        let shown =
            self.inner.merged.iter().map(|(name, value)| (name, if passwords(name) { "[hidden]" } else { value }));
        out.debug_map().entries(shown).finish()
    }
}

impl BrokerSettings {
    /// Takes a broker's file as Kafka does: every value parsed and checked, then the rules between them.
    pub fn from_file(file: &Texts) -> Result<BrokerSettings, Invalid> {
        let mut file = file.clone();
        populate_node_id(&mut file);
        BrokerSettings::build(file, Texts::new(), Texts::new(), Capped::No)
    }

    /// The same file under other dynamic settings. What Kafka would not obey is left out and named; if the rest
    /// contradicts itself, the snapshot stays as it was.
    pub fn with_dynamic(&self, cluster: &Texts, own: &Texts) -> (BrokerSettings, Vec<Ignored>) {
        let mut ignored = Vec::new();
        let cluster = obeyed(cluster, Layer::Cluster, &mut ignored);
        let own = obeyed(own, Layer::Own, &mut ignored);
        match BrokerSettings::build(self.inner.file.clone(), cluster, own, Capped::Yes) {
            Ok(settings) => (settings, ignored),
            Err(error) => {
                ignored.push(Ignored { name: "(all dynamic settings)".to_owned(), why: error.0 });
                (self.clone(), ignored)
            }
        }
    }

    /// What `with_dynamic` would build, with a contradiction reported and nothing capped: for validation.
    pub(crate) fn tried_with(&self, cluster: Texts, own: Texts) -> Result<BrokerSettings, Invalid> {
        BrokerSettings::build(self.inner.file.clone(), cluster, own, Capped::No)
    }

    fn build(file: Texts, cluster: Texts, own: Texts, capped: Capped) -> Result<BrokerSettings, Invalid> {
        let mut merged = file.clone();
        overlay(&mut merged, &cluster);
        overlay(&mut merged, &own);
        if capped == Capped::Yes {
            clamp_assignment_intervals(&mut merged);
        }
        let catalog = Catalog::get();
        let parse = |setting: &Setting| match (merged.get(setting.name), &setting.default) {
            (Some(text), _) => setting.parse(text),
            (None, DefaultValue::Value(value)) => Ok(value.clone()),
            (None, DefaultValue::Required) => {
                Err(Invalid(format!("Missing required configuration \"{}\" which has no default value.", setting.name)))
            }
        };
        let values = catalog.settings(Scope::Broker).iter().map(parse).collect::<Result<Vec<Value>, Invalid>>()?;
        let find = |name: &str| catalog.position(Scope::Broker, name).map_or(&Value::Null, |at| &values[at]);
        ensure_consistent(&find, &merged)?;
        let typed = BrokerValues::from_values(&find);
        let topic_defaults = topic::defaults(&find);
        Ok(BrokerSettings { inner: Arc::new(Inner { file, cluster, own, merged, values, typed, topic_defaults }) })
    }

    /// The effective value under a broker's name for it; none for a name that does not exist.
    pub fn value(&self, name: &str) -> Option<&Value> {
        Catalog::get().position(Scope::Broker, name).map(|at| &self.inner.values[at])
    }

    /// The effective list under a broker's name; empty for anything else.
    pub fn list(&self, name: &str) -> &[String] {
        self.value(name).and_then(Value::as_list).unwrap_or_default()
    }

    /// The effective text under a broker's name; none for null and for other types.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.value(name).and_then(Value::as_text)
    }

    /// A number set for one listener alone, below its prefix; none where it is not set or no number.
    pub fn listener_integer(&self, listener: &str, name: &str) -> Option<i64> {
        let text = self.inner.merged.get(&format!("listener.name.{}.{name}", listener.to_lowercase()))?;
        Catalog::get().find(Scope::Broker, name)?.parse(text).ok()?.as_integer()
    }

    /// How many connections single addresses may have, where that differs from max.connections.per.ip.
    pub fn connections_per_ip(&self) -> Vec<(String, i32)> {
        let overrides = self.text("max.connections.per.ip.overrides").unwrap_or_default();
        connections_per_ip(overrides).unwrap_or_default()
    }

    /// What the dataplane and the coordinators read all the time.
    pub fn typed(&self) -> &BrokerValues {
        &self.inner.typed
    }

    pub fn file(&self) -> &Texts {
        &self.inner.file
    }

    /// The obeyed part of the cluster's dynamic defaults.
    pub fn cluster(&self) -> &Texts {
        &self.inner.cluster
    }

    /// The obeyed part of this broker's dynamic settings.
    pub fn own(&self) -> &Texts {
        &self.inner.own
    }

    pub(crate) fn merged(&self) -> &Texts {
        &self.inner.merged
    }

    pub(crate) fn topic_defaults(&self) -> &[Value] {
        &self.inner.topic_defaults
    }
}

/// `broker.id` is the old name of `node.id`: each stands for the other.
fn populate_node_id(file: &mut Texts) {
    for (from, to) in [("node.id", "broker.id"), ("broker.id", "node.id")] {
        if let (Some(id), None) = (file.get(from).cloned(), file.get(to)) {
            file.insert(to.to_owned(), id);
        }
    }
}

/// A dynamic value replaces every setting that means the same, so that a coarser unit in the file cannot win.
fn overlay(merged: &mut Texts, layer: &Texts) {
    for (name, value) in layer {
        if let Some(setting) = Catalog::get().find(Scope::Broker, name) {
            for synonym in &setting.synonyms {
                merged.remove(synonym.name);
            }
        }
        merged.insert(name.clone(), value.clone());
    }
}

/// Whether dynamic assignment intervals outside their bounds are brought inside: where stored ones are applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Capped {
    Yes,
    No,
}

/// Stored values may have come to lie outside bounds that a later start set; Kafka then caps instead of refusing.
fn clamp_assignment_intervals(merged: &mut Texts) {
    let catalog = Catalog::get();
    for group in ["consumer", "share", "streams"] {
        let bound = |which: &str| {
            let setting = catalog.find(Scope::Broker, &format!("group.{group}.{which}assignment.interval.ms"))?;
            let text = merged.get(setting.name).map(String::as_str).or(setting.default_text)?;
            setting.parse(text).ok()?.as_integer()
        };
        let name = format!("group.{group}.assignment.interval.ms");
        if let (true, Some(value), Some(min), Some(max)) =
            (merged.contains_key(&name), bound(""), bound("min."), bound("max."))
            && (value < min || value > max)
        {
            merged.insert(name, value.clamp(min, max.max(min)).to_string());
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Layer {
    Cluster,
    Own,
}

/// Why a name may not be dynamic at this layer, if so.
pub(crate) fn layer_refusal(name: &str, layer: Layer) -> Option<LayerRefusal> {
    let catalog = Catalog::get();
    if let Some(setting) = catalog.find(Scope::Broker, name) {
        if setting.mutability == Mutability::ReadOnly {
            return Some(LayerRefusal::ReadOnly);
        }
        if setting.listener_only {
            return Some(LayerRefusal::ListenerOnly);
        }
        return (layer == Layer::Cluster && setting.mutability == Mutability::PerBroker)
            .then_some(LayerRefusal::PerBroker);
    }
    // Below a listener's prefix everything is a broker's own but the few settings marked so.
    let base = listener_suffix(name)?;
    let cluster_wide = catalog.find(Scope::Broker, base).is_some_and(|setting| setting.listener_cluster_wide);
    (layer == Layer::Cluster && !cluster_wide).then_some(LayerRefusal::PerBroker)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LayerRefusal {
    ReadOnly,
    ListenerOnly,
    PerBroker,
}

impl LayerRefusal {
    pub(crate) const IN_KAFKAS_ORDER: [LayerRefusal; 3] =
        [LayerRefusal::ReadOnly, LayerRefusal::ListenerOnly, LayerRefusal::PerBroker];

    pub(crate) fn message(self) -> &'static str {
        match self {
            LayerRefusal::ReadOnly => "Cannot update these configs dynamically",
            LayerRefusal::ListenerOnly => {
                "These security configs can be dynamically updated only per-listener using the listener prefix"
            }
            LayerRefusal::PerBroker => {
                "Cannot update these configs at default cluster level, broker id must be specified"
            }
        }
    }
}

/// The type and check of one dynamic value, also below a listener's prefix; a name nobody knows is kept unchecked.
pub(crate) fn check_dynamic_value(name: &str, value: &str) -> Result<(), Invalid> {
    let catalog = Catalog::get();
    let base = listener_suffix(name).unwrap_or(name);
    let plain = catalog.find(Scope::Broker, base).filter(|setting| setting.mutability != Mutability::ReadOnly);
    match plain.or_else(|| catalog.broker_quotas().iter().find(|quota| quota.name == base)) {
        Some(setting) => setting.parse(value).map(|_| ()),
        None => Ok(()),
    }
}

fn obeyed(stored: &Texts, layer: Layer, ignored: &mut Vec<Ignored>) -> Texts {
    let mut result = Texts::new();
    for (name, value) in stored {
        let why = match (check_dynamic_value(name, value), layer_refusal(name, layer)) {
            (Err(error), _) => error.0,
            (Ok(()), Some(refusal)) => refusal.message().to_owned(),
            (Ok(()), None) => {
                result.insert(name.clone(), value.clone());
                continue;
            }
        };
        ignored.push(Ignored { name: name.clone(), why });
    }
    result
}

/// What a typed field of `BrokerValues` is made of.
trait FromValue: Sized {
    #[cfg(test)]
    const KIND: Kind;
    fn from_value(value: &Value) -> Option<Self>;
}

impl FromValue for i32 {
    #[cfg(test)]
    const KIND: Kind = Kind::Int;
    fn from_value(value: &Value) -> Option<i32> {
        value.as_integer().and_then(|value| i32::try_from(value).ok())
    }
}

impl FromValue for i64 {
    #[cfg(test)]
    const KIND: Kind = Kind::Long;
    fn from_value(value: &Value) -> Option<i64> {
        value.as_integer()
    }
}

impl FromValue for bool {
    #[cfg(test)]
    const KIND: Kind = Kind::Boolean;
    fn from_value(value: &Value) -> Option<bool> {
        value.as_boolean()
    }
}

macro_rules! broker_values {
    ($($field:ident: $type:ty = $name:literal,)*) => {
        /// A broker's effective values by name and type, plain data to be copied to whoever obeys them. Units are those
        /// of the setting's name.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct BrokerValues {
            $(#[doc = $name] pub $field: $type,)*
        }

        impl BrokerValues {
            fn from_values<'a>(find: &dyn Fn(&str) -> &'a Value) -> BrokerValues {
                BrokerValues {
                    $($field: <$type>::from_value(find($name)).expect("the table gives this setting its type and a default"),)*
                }
            }

            #[cfg(test)]
            const FIELDS: &'static [(&'static str, Kind)] = &[$(($name, <$type as FromValue>::KIND)),*];
        }
    };
}

broker_values! {
    node_id: i32 = "node.id",
    auto_create_topics_enable: bool = "auto.create.topics.enable",
    broker_heartbeat_interval_ms: i32 = "broker.heartbeat.interval.ms",
    broker_session_timeout_ms: i32 = "broker.session.timeout.ms",
    connections_max_idle_ms: i64 = "connections.max.idle.ms",
    default_replication_factor: i32 = "default.replication.factor",
    delete_topic_enable: bool = "delete.topic.enable",
    fetch_max_bytes: i32 = "fetch.max.bytes",
    group_initial_rebalance_delay_ms: i32 = "group.initial.rebalance.delay.ms",
    group_max_session_timeout_ms: i32 = "group.max.session.timeout.ms",
    group_max_size: i32 = "group.max.size",
    group_min_session_timeout_ms: i32 = "group.min.session.timeout.ms",
    log_initial_task_delay_ms: i64 = "log.initial.task.delay.ms",
    log_retention_check_interval_ms: i64 = "log.retention.check.interval.ms",
    max_connection_creation_rate: i32 = "max.connection.creation.rate",
    max_connections: i32 = "max.connections",
    max_connections_per_ip: i32 = "max.connections.per.ip",
    max_incremental_fetch_session_cache_slots: i32 = "max.incremental.fetch.session.cache.slots",
    max_request_partition_size_limit: i32 = "max.request.partition.size.limit",
    message_max_bytes: i32 = "message.max.bytes",
    metadata_log_max_record_bytes_between_snapshots: i64 = "metadata.log.max.record.bytes.between.snapshots",
    metadata_log_max_snapshot_interval_ms: i64 = "metadata.log.max.snapshot.interval.ms",
    metadata_log_segment_bytes: i32 = "metadata.log.segment.bytes",
    metadata_log_segment_ms: i64 = "metadata.log.segment.ms",
    metadata_max_idle_interval_ms: i32 = "metadata.max.idle.interval.ms",
    metadata_max_retention_bytes: i64 = "metadata.max.retention.bytes",
    metadata_max_retention_ms: i64 = "metadata.max.retention.ms",
    min_insync_replicas: i32 = "min.insync.replicas",
    num_partitions: i32 = "num.partitions",
    offset_metadata_max_bytes: i32 = "offset.metadata.max.bytes",
    offsets_commit_timeout_ms: i32 = "offsets.commit.timeout.ms",
    offsets_retention_check_interval_ms: i64 = "offsets.retention.check.interval.ms",
    offsets_retention_minutes: i32 = "offsets.retention.minutes",
    offsets_topic_compression_codec: i32 = "offsets.topic.compression.codec",
    offsets_topic_num_partitions: i32 = "offsets.topic.num.partitions",
    offsets_topic_replication_factor: i32 = "offsets.topic.replication.factor",
    offsets_topic_segment_bytes: i32 = "offsets.topic.segment.bytes",
    producer_id_expiration_check_interval_ms: i32 = "producer.id.expiration.check.interval.ms",
    producer_id_expiration_ms: i32 = "producer.id.expiration.ms",
    replica_lag_time_max_ms: i64 = "replica.lag.time.max.ms",
    request_timeout_ms: i32 = "request.timeout.ms",
    socket_listen_backlog_size: i32 = "socket.listen.backlog.size",
    socket_receive_buffer_bytes: i32 = "socket.receive.buffer.bytes",
    socket_request_max_bytes: i32 = "socket.request.max.bytes",
    socket_send_buffer_bytes: i32 = "socket.send.buffer.bytes",
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn texts(pairs: &[(&str, &str)]) -> Texts {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn minimal(more: &[(&str, &str)]) -> Texts {
        let mut file =
            texts(&[("node.id", "1"), ("process.roles", "broker,controller"), ("controller.listener.names", "C")]);
        file.extend(texts(more));
        file
    }

    #[test]
    fn typed_fields_name_settings_of_their_type() {
        for (name, kind) in BrokerValues::FIELDS {
            let setting = Catalog::get().find(Scope::Broker, name).unwrap_or_else(|| panic!("{name} is no setting"));
            // A SHORT fits an i32 field.
            let same = setting.kind == *kind || (setting.kind == Kind::Short && *kind == Kind::Int);
            assert!(same, "{name} is {}", setting.kind.name());
            assert!(setting.default != DefaultValue::Value(Value::Null), "{name} may be null");
        }
    }

    #[test]
    fn layers_overlay_and_synonyms_give_way() {
        let broker =
            BrokerSettings::from_file(&minimal(&[("log.retention.hours", "1"), ("log.cleaner.threads", "4")])).unwrap();
        assert_eq!(broker.value("broker.id"), Some(&Value::Int(1)));
        let cluster = texts(&[("log.retention.ms", "5"), ("message.max.bytes", "9"), ("num.partitions", "3")]);
        let own = texts(&[("message.max.bytes", "10"), ("listeners", "x")]);
        let (dynamic, ignored) = broker.with_dynamic(&cluster, &own);
        assert_eq!(ignored.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["num.partitions"]);
        assert_eq!(dynamic.typed().message_max_bytes, 10);
        assert_eq!(dynamic.value("log.retention.hours"), Some(&Value::Int(168)));
        assert_eq!(broker.typed().message_max_bytes, 1_048_588);
    }

    #[test]
    fn a_contradictory_layer_changes_nothing() {
        let broker = BrokerSettings::from_file(&minimal(&[])).unwrap();
        let (same, ignored) = broker.with_dynamic(&texts(&[("log.retention.ms", "0")]), &Texts::new());
        assert_eq!(ignored.len(), 1);
        assert_eq!(same.value("log.retention.ms"), Some(&Value::Null));
    }

    #[test]
    fn a_file_that_contradicts_itself_is_refused() {
        let message = |more: &[(&str, &str)]| BrokerSettings::from_file(&minimal(more)).unwrap_err().0;
        assert!(message(&[("broker.id", "2")]).starts_with("`node.id` and `broker.id` must be"));
        assert!(message(&[("log.roll.ms", "0")]).contains("log.roll.ms must be"));
        assert!(message(&[("queued.max.request.bytes", "5")]).contains("queued.max.request.bytes"));
        assert!(BrokerSettings::from_file(&Texts::new()).unwrap_err().0.starts_with("Missing required configuration"));
    }

    #[test]
    fn stored_assignment_intervals_are_capped_and_others_refused() {
        let name = "group.share.assignment.interval.ms";
        let broker = BrokerSettings::from_file(&minimal(&[])).unwrap();
        let (dynamic, _) = broker.with_dynamic(&texts(&[(name, "99999")]), &Texts::new());
        assert_eq!(dynamic.value(name), Some(&Value::Int(15_000)));
        let error = BrokerSettings::from_file(&minimal(&[(name, "99999")])).unwrap_err().0;
        assert_eq!(error, format!("{name} must be less than or equal to group.share.max.assignment.interval.ms"));
    }

    #[test]
    fn connections_of_single_addresses() {
        let broker =
            BrokerSettings::from_file(&minimal(&[("max.connections.per.ip.overrides", "a:5 , [::1]:6")])).unwrap();
        assert_eq!(broker.connections_per_ip(), [("a".to_owned(), 5), ("[::1]".to_owned(), 6)]);
        assert!(BrokerSettings::from_file(&minimal(&[("max.connections.per.ip.overrides", "a:x")])).is_err());
    }

    #[test]
    fn passwords_are_not_printed() {
        let own = texts(&[("listener.name.x.ssl.keystore.password", "secret")]);
        let (broker, _) = BrokerSettings::from_file(&minimal(&[])).unwrap().with_dynamic(&Texts::new(), &own);
        assert!(!format!("{broker:?}").contains("secret"));
    }
}
