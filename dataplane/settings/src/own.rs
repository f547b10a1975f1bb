//! Pollux's own settings: three tables of the configuration file. Their defaults are those of a server; the built-in
//! laptop.toml says its smaller ones itself.

/// One of our own settings, as the documentation lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnSetting {
    pub table: &'static str,
    pub key: &'static str,
    /// What may be written.
    pub form: &'static str,
    /// What holds if nothing is.
    pub default: &'static str,
    pub meaning: &'static str,
}

const fn own(
    table: &'static str,
    key: &'static str,
    form: &'static str,
    default: &'static str,
    meaning: &'static str,
) -> OwnSetting {
    OwnSetting { table, key, form, default, meaning }
}

/// The size form is an integer of bytes or a text such as "512MiB".
pub const OWN_SETTINGS: [OwnSetting; 16] = [
    own("node", "id", "integer", "1", "The node's id; the same as Kafka's node.id."),
    own(
        "node",
        "cores",
        "\"auto\", a count, or a list of CPUs",
        "\"auto\"",
        "Data cores; auto is every CPU of the start's affinity but one, at least one.",
    ),
    own(
        "node",
        "metrics",
        "\"HOST:PORT\" or \"off\"",
        "\"127.0.0.1:9644\"",
        "Where Prometheus and readiness probes are answered.",
    ),
    own(
        "data",
        "directory",
        "path",
        "\"./pollux-data\"",
        "Holds the namespace and the control plane's files; --data sets it.",
    ),
    own(
        "data",
        "size",
        "size or \"auto\"",
        "\"auto\"",
        "Size of a namespace that is a file; auto is 90 % of the free space at format.",
    ),
    own(
        "data",
        "durability",
        "\"flush\" or \"cache\"",
        "\"flush\"",
        "What acknowledged means: on the medium, or in the page cache and flushed every 20 ms.",
    ),
    own("data", "lane_ring", "size", "\"2GiB\"", "Size of one journal lane at format, at most 1/16 of the namespace."),
    own(
        "data",
        "slab",
        "size or \"auto\"",
        "\"auto\"",
        "Size of a slab at format, a power of two; auto follows the namespace's size.",
    ),
    own(
        "data",
        "io",
        "\"auto\", \"uring\" or \"threads\"",
        "\"auto\"",
        "How the device is driven; auto falls back to threads where io_uring is refused.",
    ),
    own(
        "data",
        "sync",
        "\"auto\", \"dsync\" or \"fdatasync\"",
        "\"auto\"",
        "How a commit reaches the medium: dsync is one durable write, fdatasync a write and a flush. auto takes dsync \
         where the device has FUA and a measurement after the first start finds it faster by a fifth. Without O_DIRECT \
         it is always fdatasync.",
    ),
    own(
        "network",
        "listen",
        "\"HOST:PORT\"",
        "\"127.0.0.1:9092\"",
        "The plain way to say Kafka's listeners; --listen sets it.",
    ),
    own(
        "network",
        "receive_budget",
        "size",
        "\"64MiB\"",
        "Memory for requests being received, shared out to the cores.",
    ),
    own("network", "copy_out_window", "size", "\"64MiB\"", "Memory for journal bytes on their way to extents."),
    own("network", "tail_cache", "size", "\"96MiB\"", "Memory for the newest records, one LRU a core."),
    own("network", "read_cache", "size", "\"64MiB\"", "Memory for records read back from the device."),
    own(
        "network",
        "index_budget",
        "size",
        "\"64MiB\"",
        "Memory for index blocks of closed extents and the newest entries.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_alone_names_one_setting() {
        for own in &OWN_SETTINGS {
            assert_eq!(OWN_SETTINGS.iter().filter(|other| other.key == own.key).count(), 1, "{}", own.key);
        }
    }
}
