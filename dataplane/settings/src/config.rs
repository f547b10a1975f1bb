//! The whole configuration of a node: our options, and Kafka's settings as its file.

use crate::broker::{BrokerSettings, Texts};
use crate::config_file::{ConfigError, Item, Key, Place, Written, read_file, read_override};
use crate::listeners::{Listener, listeners};
use crate::status::Status;
use crate::value::Value;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The configuration that holds if no file is named.
const LAPTOP: &str = include_str!("../../../hw-configs/laptop.toml");
/// The largest batch any namespace takes; a small one takes less, which is known when it is opened.
pub(crate) const LARGEST_BATCH: i64 = 16 << 20;
/// Below this a budget could not hold one request beside the bookkeeping.
const BUDGET_MIN: u64 = 1 << 20;

/// Which CPUs the data cores run on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cores {
    /// Every CPU of the start's affinity mask but one, at least one.
    Auto,
    Count(u16),
    Cpus(Vec<u16>),
}

/// What acknowledged means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    Flush,
    Cache,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoEngine {
    Auto,
    Uring,
    Threads,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyncMethod {
    Auto,
    Dsync,
    Fdatasync,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeOptions {
    pub id: i32,
    pub cores: Cores,
    /// None answers no metrics.
    pub metrics: Option<SocketAddr>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DataOptions {
    pub directory: PathBuf,
    /// None takes 90 % of the free space at format.
    pub size: Option<u64>,
    pub durability: Durability,
    pub lane_ring: u64,
    /// None follows the namespace's size.
    pub slab: Option<u64>,
    pub io: IoEngine,
    pub sync: SyncMethod,
}

/// Budgets in bytes for the whole node; the cores share them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetworkOptions {
    pub receive_budget: u64,
    pub copy_out_window: u64,
    pub tail_cache: u64,
    pub read_cache: u64,
    pub index_budget: u64,
}

#[derive(Clone, Debug)]
pub struct NodeConfig {
    pub node: NodeOptions,
    pub data: DataOptions,
    pub network: NetworkOptions,
    /// Where to listen.
    pub listeners: Vec<Listener>,
    /// What clients are told, by listener name.
    pub advertised: Vec<Listener>,
    /// Kafka's settings, the node's file without any dynamic ones.
    pub broker: BrokerSettings,
}

impl NodeConfig {
    /// The built-in configuration with overrides of the command line, each `KEY=VALUE`.
    pub fn laptop(overrides: &[String]) -> Result<NodeConfig, ConfigError> {
        NodeConfig::read("laptop.toml", LAPTOP, overrides)
    }

    /// A file, which replaces the built-in configuration whole, with overrides of the command line.
    pub fn read(file: &str, text: &str, overrides: &[String]) -> Result<NodeConfig, ConfigError> {
        let mut items = read_file(file, text)?;
        ensure_no_contradiction(&items)?;
        let commanded = overrides.iter().map(|text| read_override(text)).collect::<Result<Vec<_>, _>>()?;
        ensure_no_contradiction(&commanded)?;
        items.retain(|item| !commanded.iter().any(|other| other.key.is_twin_of(&item.key)));
        items.extend(commanded);
        NodeConfig::from_items(&items)
    }

    fn from_items(items: &[Item]) -> Result<NodeConfig, ConfigError> {
        let own = Own { items };
        let mut file = kafka_file(items)?;
        let node = own.node(&file)?;
        let data = own.data()?;
        let network = own.network()?;
        let listen = own.text("network", "listen")?.unwrap_or_else(|| "127.0.0.1:9092".to_owned());
        let mut provide = |name: &str, value: String| {
            file.entry(name.to_owned()).or_insert(value);
        };
        provide("node.id", node.id.to_string());
        provide("process.roles", "broker,controller".to_owned());
        provide("controller.listener.names", "CONTROLLER".to_owned());
        provide("listeners", format!("PLAINTEXT://{listen}"));
        provide("log.dirs", data.directory.display().to_string());
        let whole = |reason: String| ConfigError { place: place_of(items, &reason), reason };
        let broker = BrokerSettings::from_file(&file).map_err(|error| whole(error.0))?;
        let (listeners, advertised) = listeners(&broker).map_err(whole)?;
        Ok(NodeConfig { node, data, network, listeners, advertised, broker })
    }
}

/// The item a message about the whole speaks of, if it names one.
fn place_of(items: &[Item], reason: &str) -> Place {
    let named = |item: &&Item| match &item.key {
        Key::Kafka(_, name) => reason.contains(name.as_str()),
        Key::Own(own) => own.key == "listen" && reason.contains("listeners"),
    };
    let longest = items.iter().filter(named).max_by_key(|item| match &item.key {
        Key::Kafka(_, name) => name.len(),
        Key::Own(_) => 0,
    });
    longest.map_or(Place::Whole, |item| item.place.clone())
}

/// Two items of one layer that say the same setting must say the same.
fn ensure_no_contradiction(items: &[Item]) -> Result<(), ConfigError> {
    for (at, item) in items.iter().enumerate() {
        let earlier = items[..at].iter().find(|earlier| earlier.key.is_twin_of(&item.key));
        let Some(earlier) = earlier.filter(|earlier| meaning(earlier) != meaning(item)) else {
            continue;
        };
        return item.refuse(format!("contradicts {}, which sets the same to another value", earlier.place));
    }
    Ok(())
}

fn meaning(item: &Item) -> String {
    let text = match &item.value {
        Written::Text(text) => text.trim().to_owned(),
        Written::Integer(number) => number.to_string(),
        other => format!("{other:?}"),
    };
    if item.key.is_own("network", "listen") { format!("PLAINTEXT://{text}") } else { text }
}

/// Kafka's settings as its own file would hold them, each taken by its own rules.
fn kafka_file(items: &[Item]) -> Result<Texts, ConfigError> {
    let mut file = Texts::new();
    for item in items {
        let Key::Kafka(setting, name) = &item.key else {
            continue;
        };
        let text = item.value.kafka_text(setting).or_else(|reason| item.refuse(reason))?;
        let value = setting.parse(&text).or_else(|error| item.refuse(error.0))?;
        if let (Status::Refused { why }, true) = (setting.status, value != setting.default_value()) {
            return item.refuse(format!("{name} is refused: {why}"));
        }
        if setting.name == "message.max.bytes" && value.as_integer().is_some_and(|bytes| bytes > LARGEST_BATCH) {
            return item
                .refuse(format!("message.max.bytes may be at most {LARGEST_BATCH}, the largest batch that is stored"));
        }
        file.insert(name.clone(), text);
    }
    Ok(file)
}

struct Own<'a> {
    items: &'a [Item],
}

impl Own<'_> {
    fn find(&self, table: &str, key: &str) -> Option<&Item> {
        self.items.iter().find(|item| item.key.is_own(table, key))
    }

    fn text(&self, table: &str, key: &str) -> Result<Option<String>, ConfigError> {
        match self.find(table, key) {
            None => Ok(None),
            Some(Item { value: Written::Text(text), .. }) => Ok(Some(text.clone())),
            Some(item) => item.refuse(format!("{key} is a text")),
        }
    }

    fn choice<T: Copy>(&self, table: &str, key: &str, choices: &[(&str, T)]) -> Result<T, ConfigError> {
        let Some(item) = self.find(table, key) else {
            return Ok(choices[0].1);
        };
        let found = choices.iter().find(|(name, _)| item.value == Written::Text((*name).to_owned()));
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        found.map_or_else(|| item.refuse(format!("{key} is one of {}", names.join(", "))), |(_, value)| Ok(*value))
    }

    /// A size between two bounds.
    fn size(&self, (table, key): (&str, &str), default: u64, least: u64) -> Result<u64, ConfigError> {
        let Some(item) = self.find(table, key) else {
            return Ok(default);
        };
        match item.value.bytes() {
            Ok(bytes) if bytes >= least => Ok(bytes),
            Ok(_) => item.refuse(format!("{key} is at least {least} bytes")),
            Err(reason) => item.refuse(reason),
        }
    }

    fn size_or_auto(&self, key: &str, least: u64) -> Result<Option<u64>, ConfigError> {
        match self.find("data", key) {
            Some(item) if item.value != Written::Text("auto".to_owned()) => {
                self.size(("data", key), 0, least).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn node(&self, kafka: &Texts) -> Result<NodeOptions, ConfigError> {
        let in_kafka = kafka.get("node.id").or_else(|| kafka.get("broker.id"));
        let id = match self.find("node", "id") {
            None => in_kafka
                .and_then(|text| Value::parse("node.id", text, crate::Kind::Int).ok()?.as_integer())
                .unwrap_or(1),
            Some(Item { value: Written::Integer(id), .. }) => *id,
            Some(item) => return item.refuse("id is an integer"),
        };
        let id = match (i32::try_from(id), self.find("node", "id")) {
            (Ok(id), _) if id >= 0 => id,
            (_, Some(item)) => return item.refuse("id is between 0 and 2147483647"),
            (_, None) => -1,
        };
        let metrics = match self.text("node", "metrics")?.as_deref() {
            None => Some(SocketAddr::from(([127, 0, 0, 1], 9644))),
            Some("off") => None,
            Some(address) => match (address.parse(), self.find("node", "metrics")) {
                (Ok(address), _) => Some(address),
                (Err(_), Some(item)) => return item.refuse("metrics is an IP address and a port, or off"),
                (Err(_), None) => None,
            },
        };
        Ok(NodeOptions { id, cores: self.cores()?, metrics })
    }

    fn cores(&self) -> Result<Cores, ConfigError> {
        let Some(item) = self.find("node", "cores") else {
            return Ok(Cores::Auto);
        };
        let small = |number: i64| u16::try_from(number).ok();
        let cores = match &item.value {
            Written::Text(text) if text == "auto" => Some(Cores::Auto),
            Written::Integer(count) => small(*count).filter(|count| *count > 0).map(Cores::Count),
            Written::List(values) => {
                let number = |value: &Written| if let Written::Integer(number) = value { small(*number) } else { None };
                let cpus: Option<Vec<u16>> = values.iter().map(number).collect();
                cpus.filter(|cpus| !cpus.is_empty() && (1..cpus.len()).all(|at| !cpus[..at].contains(&cpus[at])))
                    .map(Cores::Cpus)
            }
            _ => None,
        };
        cores.map_or_else(
            || item.refuse("cores is \"auto\", a count from 1, or a list of different CPUs such as [0, 1]"),
            Ok,
        )
    }

    fn data(&self) -> Result<DataOptions, ConfigError> {
        let slab = self.size_or_auto("slab", 4 << 20)?;
        if let (Some(bytes), Some(item)) = (slab, self.find("data", "slab"))
            && (!bytes.is_power_of_two() || bytes > 1 << 30)
        {
            return item.refuse("slab is a power of two from 4MiB to 1GiB");
        }
        Ok(DataOptions {
            directory: self.text("data", "directory")?.unwrap_or_else(|| "./pollux-data".to_owned()).into(),
            size: self.size_or_auto("size", 64 << 20)?,
            durability: self.choice(
                "data",
                "durability",
                &[("flush", Durability::Flush), ("cache", Durability::Cache)],
            )?,
            lane_ring: self.size(("data", "lane_ring"), 2 << 30, 4 << 20)?,
            slab,
            io: self.choice(
                "data",
                "io",
                &[("auto", IoEngine::Auto), ("uring", IoEngine::Uring), ("threads", IoEngine::Threads)],
            )?,
            sync: self.choice(
                "data",
                "sync",
                &[("auto", SyncMethod::Auto), ("dsync", SyncMethod::Dsync), ("fdatasync", SyncMethod::Fdatasync)],
            )?,
        })
    }

    fn network(&self) -> Result<NetworkOptions, ConfigError> {
        let budget = |key, default: u64| self.size(("network", key), default << 20, BUDGET_MIN);
        Ok(NetworkOptions {
            receive_budget: budget("receive_budget", 64)?,
            copy_out_window: budget("copy_out_window", 64)?,
            tail_cache: budget("tail_cache", 96)?,
            read_cache: budget("read_cache", 64)?,
            index_budget: budget("index_budget", 64)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::own::OWN_SETTINGS;

    fn read(text: &str, overrides: &[&str]) -> Result<NodeConfig, ConfigError> {
        let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
        NodeConfig::read("f.toml", text, &overrides)
    }

    fn reason(text: &str, overrides: &[&str]) -> String {
        read(text, overrides).unwrap_err().to_string()
    }

    #[test]
    fn the_built_in_configuration() {
        let config = NodeConfig::laptop(&[]).unwrap();
        assert_eq!(config.node.id, 1);
        assert_eq!(config.node.cores, Cores::Auto);
        assert_eq!(config.data.durability, Durability::Flush);
        assert_eq!(config.data.lane_ring, 64 << 20);
        let network = config.network;
        let budgets = [
            network.receive_budget,
            network.copy_out_window,
            network.tail_cache,
            network.read_cache,
            network.index_budget,
        ];
        assert_eq!(budgets.map(|budget| budget >> 20), [16, 32, 32, 32, 16]);
        assert_eq!(config.listeners.len(), 1);
        assert_eq!((config.listeners[0].host.as_str(), config.listeners[0].port), ("127.0.0.1", 9092));
        for name in [
            "offsets.topic.replication.factor",
            "transaction.state.log.replication.factor",
            "transaction.state.log.min.isr",
        ] {
            assert_eq!(config.broker.value(name).and_then(Value::as_integer), Some(1), "{name}");
        }
    }

    #[test]
    fn the_example_of_a_server_reads() {
        let text = include_str!("../../../hw-configs/server-example.toml");
        let config = NodeConfig::read("server-example.toml", text, &[]).unwrap();
        assert!(matches!(config.node.cores, Cores::Cpus(_)));
    }

    #[test]
    fn documented_defaults_are_the_defaults() {
        let by_table = |table: &str| {
            let of_table = OWN_SETTINGS.iter().filter(|own| own.table == table);
            of_table.map(|own| format!("{} = {}\n", own.key, own.default)).collect::<String>()
        };
        let text =
            format!("[node]\n{}[data]\n{}[network]\n{}", by_table("node"), by_table("data"), by_table("network"));
        let (spoken, silent) = (read(&text, &[]).unwrap(), read("", &[]).unwrap());
        assert_eq!((spoken.node, spoken.data), (silent.node, silent.data));
        assert_eq!((spoken.network, spoken.listeners), (silent.network, silent.listeners));
    }

    #[test]
    fn overrides_replace_the_file() {
        let text = "[node]\nid = 3\n[kafka]\n\"listeners\" = \"PLAINTEXT://127.0.0.1:1\"\n\"num.partitions\" = 2\n";
        let overrides = ["durability=cache", "cores=[0]", "listen=127.0.0.1:7", "num.partitions=5", "node.id=4"];
        let config = read(text, &overrides).unwrap();
        assert_eq!(config.data.durability, Durability::Cache);
        assert_eq!(config.node.cores, Cores::Cpus(vec![0]));
        assert_eq!(config.node.id, 4);
        assert_eq!(config.listeners[0].port, 7);
        assert_eq!(config.broker.typed().num_partitions, 5);
        assert_eq!(config.broker.typed().node_id, 4);
    }

    #[test]
    fn values_take_every_form() {
        let text = "[kafka]\n\"log.segment.bytes\" = \"512MiB\"\n\"log.cleanup.policy\" = [\"compact\", \"delete\"]\n\
                    \"auto.create.topics.enable\" = false\n\"log.cleaner.min.cleanable.ratio\" = 0.25\n";
        let config = read(text, &[]).unwrap();
        assert_eq!(config.broker.value("log.segment.bytes"), Some(&Value::Int(512 << 20)));
        assert_eq!(config.broker.list("log.cleanup.policy"), ["compact", "delete"]);
        assert!(!config.broker.typed().auto_create_topics_enable);
        assert_eq!(read("[node]\ncores = 2\n", &[]).unwrap().node.cores, Cores::Count(2));
    }

    #[test]
    fn refusals_name_the_line_and_the_reason() {
        assert_eq!(
            reason("[node]\nid = 1\n[kafka]\n\"node.id\" = 2\n", &[]),
            "f.toml:2: contradicts f.toml:4, which sets the same to another value"
        );
        assert_eq!(
            reason("[kafka]\n\"num.partitions\" = 0\n", &[]),
            "f.toml:2: Invalid value 0 for configuration num.partitions: Value must be at least 1"
        );
        assert!(
            reason("[kafka]\n\"authorizer.class.name\" = \"x.Y\"\n", &[])
                .starts_with("f.toml:2: authorizer.class.name is refused")
        );
        assert!(reason("[kafka]\n\n\"log.roll.ms\" = 0\n", &[]).starts_with("f.toml:3: "));
        assert!(reason("[kafka]\n\"message.max.bytes\" = \"17MiB\"\n", &[]).contains("at most 16777216"));
        assert!(reason("[node]\ncores = [0, 0]\n", &[]).starts_with("f.toml:2: cores is"));
        assert!(reason("[network]\ntail_cache = \"5MB\"\n", &[]).contains("units are KiB"));
        assert!(reason("[data]\nslab = \"5MiB\"\n", &[]).contains("power of two"));
        assert!(reason("[data]\ndurability = \"none\"\n", &[]).contains("one of flush, cache"));
        assert!(reason("", &["id=-1"]).starts_with("--set id=-1: id is between"));
        assert!(reason("", &["node.id=1", "id=2"]).contains("contradicts --set node.id=1"));
        assert!(reason("[network]\nlisten = \"0.0.0.0:9092\"\n", &[]).starts_with("f.toml:2: "));
    }
}
