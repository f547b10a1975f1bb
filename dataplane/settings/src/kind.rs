//! The vocabulary: kinds of values, where a setting applies, where a value came from. Numbers are Kafka's own.

/// The type of a setting's value, by Kafka's names; `code` is the one DescribeConfigs carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Boolean,
    String,
    Int,
    Short,
    Long,
    Double,
    List,
    Class,
    Password,
}

impl Kind {
    pub(crate) const ALL: [(Kind, &'static str, i8); 9] = [
        (Kind::Boolean, "BOOLEAN", 1),
        (Kind::String, "STRING", 2),
        (Kind::Int, "INT", 3),
        (Kind::Short, "SHORT", 4),
        (Kind::Long, "LONG", 5),
        (Kind::Double, "DOUBLE", 6),
        (Kind::List, "LIST", 7),
        (Kind::Class, "CLASS", 8),
        (Kind::Password, "PASSWORD", 9),
    ];
    /// What DescribeConfigs says of a setting that no definition knows.
    pub const UNKNOWN_CODE: i8 = 0;

    pub fn name(self) -> &'static str {
        Kind::ALL.iter().find(|(kind, ..)| *kind == self).map_or("", |(_, name, _)| name)
    }

    pub fn code(self) -> i8 {
        Kind::ALL.iter().find(|(kind, ..)| *kind == self).map_or(Kind::UNKNOWN_CODE, |(.., code)| *code)
    }

    pub(crate) fn named(name: &str) -> Option<Kind> {
        Kind::ALL.iter().find(|(_, known, _)| *known == name).map(|(kind, ..)| *kind)
    }

    /// Values of passwords never leave the node.
    pub fn is_sensitive(self) -> bool {
        self == Kind::Password
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Importance {
    High,
    Medium,
    Low,
}

impl Importance {
    pub fn name(self) -> &'static str {
        match self {
            Importance::High => "HIGH",
            Importance::Medium => "MEDIUM",
            Importance::Low => "LOW",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Importance> {
        [Importance::High, Importance::Medium, Importance::Low].into_iter().find(|one| one.name() == name)
    }
}

/// What a setting is a setting of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Scope {
    Broker,
    Topic,
    Group,
    ClientMetrics,
}

impl Scope {
    pub const ALL: [Scope; 4] = [Scope::Broker, Scope::Topic, Scope::Group, Scope::ClientMetrics];

    pub fn name(self) -> &'static str {
        match self {
            Scope::Broker => "broker",
            Scope::Topic => "topic",
            Scope::Group => "group",
            Scope::ClientMetrics => "client-metrics",
        }
    }
}

/// Whether and where a broker's setting may be changed while it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutability {
    ReadOnly,
    /// For one broker only, never as the cluster's default.
    PerBroker,
    /// As the cluster's default, and for one broker.
    ClusterWide,
}

impl Mutability {
    pub fn name(self) -> &'static str {
        match self {
            Mutability::ReadOnly => "read-only",
            Mutability::PerBroker => "per-broker",
            Mutability::ClusterWide => "cluster-wide",
        }
    }
}

/// Where an effective value came from; `code` is the one DescribeConfigs carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    DynamicTopic,
    DynamicBroker,
    DynamicDefaultBroker,
    StaticBroker,
    Default,
    ClientMetrics,
    Group,
}

impl Source {
    pub fn code(self) -> i8 {
        match self {
            Source::DynamicTopic => 1,
            Source::DynamicBroker => 2,
            Source::DynamicDefaultBroker => 3,
            Source::StaticBroker => 4,
            Source::Default => 5,
            Source::ClientMetrics => 7,
            Source::Group => 8,
        }
    }

    /// The name Kafka's admin client prints.
    pub fn name(self) -> &'static str {
        match self {
            Source::DynamicTopic => "DYNAMIC_TOPIC_CONFIG",
            Source::DynamicBroker => "DYNAMIC_BROKER_CONFIG",
            Source::DynamicDefaultBroker => "DYNAMIC_DEFAULT_BROKER_CONFIG",
            Source::StaticBroker => "STATIC_BROKER_CONFIG",
            Source::Default => "DEFAULT_CONFIG",
            Source::ClientMetrics => "DYNAMIC_CLIENT_METRICS_CONFIG",
            Source::Group => "DYNAMIC_GROUP_CONFIG",
        }
    }
}
