//! Kafka's limits of connections: how many, how many from one address, how many a second. Core 0 asks here before it
//! serves a client. A limit of numbers or rates makes clients wait, in the system's queue or here; a limit of one address
//! refuses them, since waiting would let that address keep everybody else out. Pure state over some handle `T`.

use base::{ListenerId, Monotonic};
use settings::BrokerSettings;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// One connection, in the unit of a bucket: connections a second times nanoseconds.
const ONE: u64 = 1_000_000_000;

/// Connections a second, over the window in which Kafka measures them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rate {
    per_second: u64,
    burst: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Bounds {
    most: Option<usize>,
    rate: Option<Rate>,
}

/// The limits as they are in force.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ConnectionLimits {
    node: Bounds,
    per_ip: Option<usize>,
    per_ip_overrides: HashMap<IpAddr, usize>,
    /// By listener id.
    listeners: Vec<Bounds>,
}

impl ConnectionLimits {
    /// `listeners` are the names in the order of their ids.
    pub fn from_settings<'a>(settings: &BrokerSettings, listeners: impl IntoIterator<Item = &'a str>) -> Self {
        let typed = settings.typed();
        let number = |name: &str| settings.value(name).and_then(settings::Value::as_integer).unwrap_or(1).max(1) as u64;
        // Kafka's measure of a rate spreads what came over all windows but the running one.
        let window = number("quota.window.num").saturating_sub(1).max(1) * number("quota.window.size.seconds");
        // Kafka lets nobody wait longer than about a second, so a rate of zero keeps no node from being repaired.
        let rate =
            |per_second: u64| Rate { per_second: per_second.max(1), burst: per_second.saturating_mul(window).max(1) };
        let bounds = |most: Option<i64>, per_second: Option<i64>| Bounds {
            most: most.and_then(limit),
            rate: per_second.and_then(limit).map(|per_second| rate(per_second as u64)),
        };
        let of_listener = |name: &str| {
            let own = |setting: &str| settings.listener_integer(name, setting);
            bounds(own("max.connections"), own("max.connection.creation.rate"))
        };
        let mut per_ip_overrides = HashMap::new();
        for (host, count) in settings.connections_per_ip() {
            // Looking a name up may take seconds, which the loop does not have.
            match host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
                Ok(ip) => drop(per_ip_overrides.insert(ip.to_canonical(), count.max(0) as usize)),
                Err(_) => tracing::warn!(host, "max.connections.per.ip.overrides: not an address, and not obeyed"),
            }
        }
        ConnectionLimits {
            node: bounds(Some(typed.max_connections.into()), Some(typed.max_connection_creation_rate.into())),
            per_ip: limit(typed.max_connections_per_ip.into()),
            per_ip_overrides,
            listeners: listeners.into_iter().map(of_listener).collect(),
        }
    }

    fn listener(&self, listener: ListenerId) -> Bounds {
        self.listeners.get(usize::from(listener.0)).copied().unwrap_or_default()
    }
}

/// The largest number is Kafka's "without limit".
fn limit(value: i64) -> Option<usize> {
    (value < i64::from(i32::MAX)).then_some(value.max(0) as usize)
}

/// A bucket of connections that may be made at once, filled at the rate.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    level: u64,
    filled_at: Monotonic,
}

impl Bucket {
    fn full(rate: Rate, now: Monotonic) -> Bucket {
        Bucket { level: rate.burst.saturating_mul(ONE), filled_at: now }
    }

    fn fill(&mut self, rate: Rate, now: Monotonic) {
        let nanos = u64::try_from(now.since(self.filled_at).as_nanos()).unwrap_or(u64::MAX);
        let gained = nanos.saturating_mul(rate.per_second);
        self.level = self.level.saturating_add(gained).min(rate.burst.saturating_mul(ONE));
        self.filled_at = now;
    }

    /// When there will be one.
    fn ready_at(&self, rate: Rate) -> Monotonic {
        let missing = ONE.saturating_sub(self.level);
        self.filled_at + Duration::from_nanos(missing.div_ceil(rate.per_second))
    }
}

/// What holds for the node or for one listener.
#[derive(Clone, Copy, Debug, Default)]
struct Door {
    open: usize,
    bucket: Option<Bucket>,
}

impl Door {
    fn refill(&mut self, bounds: Bounds, now: Monotonic) {
        self.bucket = bounds.rate.map(|rate| {
            let mut bucket = self.bucket.unwrap_or_else(|| Bucket::full(rate, now));
            bucket.fill(rate, now);
            bucket
        });
    }

    fn has_number(&self, bounds: Bounds) -> bool {
        bounds.most.is_none_or(|most| self.open < most)
    }

    fn has_rate(&self) -> bool {
        self.bucket.is_none_or(|bucket| bucket.level >= ONE)
    }

    fn enter(&mut self) {
        self.open += 1;
        if let Some(bucket) = &mut self.bucket {
            bucket.level = bucket.level.saturating_sub(ONE);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Serve,
    /// It is kept here, and `next_admitted` gives it back.
    Wait,
    /// Its address has as many as it may.
    Refuse,
}

#[derive(Debug)]
struct Waiting<T> {
    client: T,
    listener: ListenerId,
    peer: SocketAddr,
}

#[derive(Debug)]
pub struct Doors<T> {
    limits: ConnectionLimits,
    node: Door,
    listeners: Vec<Door>,
    by_ip: HashMap<IpAddr, usize>,
    waiting: VecDeque<Waiting<T>>,
    /// By listener id: it takes nobody for now.
    shut: Vec<bool>,
}

impl<T> Default for Doors<T> {
    fn default() -> Doors<T> {
        Doors {
            limits: ConnectionLimits::default(),
            node: Door::default(),
            listeners: Vec::new(),
            by_ip: HashMap::new(),
            waiting: VecDeque::new(),
            shut: Vec::new(),
        }
    }
}

impl<T: PartialEq> Doors<T> {
    /// Connections that are open stay open, whatever the limits become.
    pub fn set_limits(&mut self, limits: ConnectionLimits) {
        self.limits = limits;
    }

    /// A client came in at a listener.
    pub fn on_client(&mut self, now: Monotonic, client: T, listener: ListenerId, peer: SocketAddr) -> Verdict {
        let first = !self.waiting.iter().any(|waiting| waiting.listener == listener);
        if first && self.has_room(now, listener) {
            return self.judge(listener, peer);
        }
        self.waiting.push_back(Waiting { client, listener, peer });
        Verdict::Wait
    }

    /// A client that was served is gone.
    pub fn on_ended(&mut self, listener: ListenerId, peer: Option<SocketAddr>) {
        self.node.open = self.node.open.saturating_sub(1);
        let door = self.listener(listener);
        door.open = door.open.saturating_sub(1);
        let Some(ip) = peer.map(|peer| peer.ip().to_canonical()) else { return };
        if let Some(count) = self.by_ip.get_mut(&ip) {
            *count -= 1;
            if *count == 0 {
                self.by_ip.remove(&ip);
            }
        }
    }

    /// A client that waited went away.
    pub fn forget(&mut self, client: &T) {
        self.waiting.retain(|waiting| waiting.client != *client);
    }

    /// A client that waited long enough, never with `Wait`.
    pub fn next_admitted(&mut self, now: Monotonic) -> Option<(T, ListenerId, SocketAddr, Verdict)> {
        let at = (0..self.waiting.len()).find(|at| self.has_room(now, self.waiting[*at].listener))?;
        let Waiting { client, listener, peer } = self.waiting.remove(at)?;
        let verdict = self.judge(listener, peer);
        Some((client, listener, peer, verdict))
    }

    /// Whether somebody waits or a listener is shut, so that time or an ended connection may change something.
    pub fn is_restrained(&self) -> bool {
        !self.waiting.is_empty() || self.shut.contains(&true)
    }

    /// Whether a listener is to take clients now; none where that is what it does already.
    pub fn change_of(&mut self, now: Monotonic, listener: ListenerId) -> Option<bool> {
        let waits = self.waiting.iter().any(|waiting| waiting.listener == listener);
        let opens = !waits && self.has_room(now, listener);
        let at = usize::from(listener.0);
        if self.shut.len() <= at {
            self.shut.resize(at + 1, false);
        }
        let was_shut = std::mem::replace(&mut self.shut[at], !opens);
        (was_shut == opens).then_some(opens)
    }

    /// When a rate will let the next one in, where no number forbids it.
    pub fn next_deadline(&self) -> Option<Monotonic> {
        if !self.is_restrained() || !self.node.has_number(self.limits.node) {
            return None;
        }
        let ready = |door: &Door, bounds: Bounds| match (door.bucket, bounds.rate) {
            (Some(bucket), Some(rate)) => bucket.ready_at(rate),
            _ => Monotonic::ZERO,
        };
        let node = ready(&self.node, self.limits.node);
        let shut = (0..self.shut.len()).filter(|at| self.shut[*at]).filter_map(|at| {
            let bounds = self.limits.listener(ListenerId(at as u16));
            let door = self.listeners.get(at).copied().unwrap_or_default();
            door.has_number(bounds).then(|| ready(&door, bounds).max(node))
        });
        shut.min()
    }

    fn listener(&mut self, listener: ListenerId) -> &mut Door {
        let at = usize::from(listener.0);
        if self.listeners.len() <= at {
            self.listeners.resize(at + 1, Door::default());
        }
        &mut self.listeners[at]
    }

    fn has_room(&mut self, now: Monotonic, listener: ListenerId) -> bool {
        let (node, own) = (self.limits.node, self.limits.listener(listener));
        self.node.refill(node, now);
        let door = self.listener(listener);
        door.refill(own, now);
        let listener_has = door.has_number(own) && door.has_rate();
        listener_has && self.node.has_number(node) && self.node.has_rate()
    }

    /// Lets a client in for whom there is room, unless its address has enough. The try counts for the rate either way.
    fn judge(&mut self, listener: ListenerId, peer: SocketAddr) -> Verdict {
        self.node.enter();
        self.listener(listener).enter();
        let ip = peer.ip().to_canonical();
        let most = self.limits.per_ip_overrides.get(&ip).copied().or(self.limits.per_ip);
        let count = self.by_ip.entry(ip).or_insert(0);
        *count += 1;
        if most.is_some_and(|most| *count > most) {
            self.on_ended(listener, Some(peer));
            return Verdict::Refuse;
        }
        Verdict::Serve
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use settings::Texts;

    const PLAIN: ListenerId = ListenerId(0);
    const OTHER: ListenerId = ListenerId(1);

    fn limits(more: &[(&str, &str)]) -> ConnectionLimits {
        let minimal = [("node.id", "1"), ("process.roles", "broker"), ("controller.listener.names", "C")];
        let texts = minimal.iter().chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let settings = BrokerSettings::from_file(&Texts::from_iter(texts)).unwrap();
        ConnectionLimits::from_settings(&settings, ["PLAIN", "OTHER"])
    }

    fn doors(more: &[(&str, &str)]) -> Doors<u32> {
        let mut doors = Doors::default();
        doors.set_limits(limits(more));
        doors
    }

    fn peer(text: &str) -> SocketAddr {
        format!("{text}:1000").parse().unwrap()
    }

    fn at(millis: u64) -> Monotonic {
        Monotonic(1_000_000_000 + millis * 1_000_000)
    }

    #[test]
    fn without_limits_everybody_comes_in() {
        let mut doors = doors(&[]);
        for client in 0..10_000 {
            assert_eq!(doors.on_client(at(0), client, PLAIN, peer("10.0.0.1")), Verdict::Serve);
        }
        assert_eq!(doors.change_of(at(0), PLAIN), None);
        assert!(!doors.is_restrained() && doors.next_deadline().is_none());
    }

    #[test]
    fn at_the_most_connections_clients_wait_until_one_ends() {
        let mut doors = doors(&[("max.connections", "2")]);
        assert_eq!(doors.on_client(at(0), 1, PLAIN, peer("10.0.0.1")), Verdict::Serve);
        assert_eq!(doors.change_of(at(0), PLAIN), None);
        assert_eq!(doors.on_client(at(0), 2, PLAIN, peer("10.0.0.2")), Verdict::Serve);
        assert_eq!(doors.change_of(at(0), PLAIN), Some(false), "full: the next one waits in the system's queue");
        assert_eq!(doors.on_client(at(0), 3, PLAIN, peer("10.0.0.3")), Verdict::Wait, "it was accepted already");
        assert_eq!(doors.on_client(at(0), 4, OTHER, peer("10.0.0.3")), Verdict::Wait);
        assert!(doors.next_admitted(at(10_000)).is_none() && doors.next_deadline().is_none(), "time changes nothing");
        doors.on_ended(PLAIN, Some(peer("10.0.0.1")));
        let (client, listener, _, verdict) = doors.next_admitted(at(1)).unwrap();
        assert_eq!((client, listener, verdict), (3, PLAIN, Verdict::Serve), "in order");
        assert!(doors.next_admitted(at(1)).is_none());
        doors.forget(&4);
        assert_eq!(doors.change_of(at(1), PLAIN), None);
        doors.on_ended(PLAIN, Some(peer("10.0.0.3")));
        assert_eq!(doors.change_of(at(1), PLAIN), Some(true));
        assert!(!doors.is_restrained());
    }

    #[test]
    fn an_address_with_enough_is_refused_and_others_are_not() {
        let overrides = "10.0.0.7:1,[::1]:0,not-an-address:5";
        let mut doors = doors(&[("max.connections.per.ip", "2"), ("max.connections.per.ip.overrides", overrides)]);
        let mut come = |ip: &str| doors.on_client(at(0), 0, PLAIN, peer(ip));
        assert_eq!(
            [come("10.0.0.1"), come("10.0.0.1"), come("10.0.0.1")],
            [Verdict::Serve, Verdict::Serve, Verdict::Refuse]
        );
        assert_eq!([come("[::ffff:10.0.0.1]"), come("10.0.0.2")], [Verdict::Refuse, Verdict::Serve]);
        assert_eq!(
            [come("10.0.0.7"), come("10.0.0.7"), come("[::1]")],
            [Verdict::Serve, Verdict::Refuse, Verdict::Refuse]
        );
        doors.on_ended(PLAIN, Some(peer("10.0.0.1")));
        assert_eq!(doors.on_client(at(0), 0, PLAIN, peer("10.0.0.1")), Verdict::Serve);
        for ip in ["10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.7"] {
            doors.on_ended(PLAIN, Some(peer(ip)));
        }
        assert!(doors.by_ip.is_empty() && doors.node.open == 0, "refused ones left no trace: {doors:?}");
    }

    #[test]
    fn a_rate_lets_a_burst_in_and_then_one_after_the_other() {
        let window = [("quota.window.num", "3"), ("quota.window.size.seconds", "2")];
        let mut doors = doors(&[&[("max.connection.creation.rate", "10")], &window[..]].concat());
        for client in 0..40 {
            assert_eq!(doors.on_client(at(0), client, PLAIN, peer("10.0.0.1")), Verdict::Serve, "{client}");
        }
        assert_eq!(doors.on_client(at(0), 40, PLAIN, peer("10.0.0.1")), Verdict::Wait);
        assert_eq!(doors.change_of(at(0), PLAIN), Some(false));
        assert_eq!(doors.next_deadline(), Some(at(100)));
        assert!(doors.next_admitted(at(99)).is_none());
        assert_eq!(doors.next_admitted(at(100)).map(|(client, ..)| client), Some(40));
        assert_eq!((doors.change_of(at(100), PLAIN), doors.next_deadline()), (None, Some(at(200))));
        assert_eq!(doors.change_of(at(200), PLAIN), Some(true));
        // Many more at once only after a quiet time, and never more than the burst.
        let served = (0..100).filter(|n| doors.on_client(at(60_000), *n, PLAIN, peer("10.0.0.1")) == Verdict::Serve);
        assert_eq!(served.count(), 40);
    }

    #[test]
    fn a_listener_has_limits_of_its_own() {
        let own =
            [("listener.name.plain.max.connections", "1"), ("listener.name.other.max.connection.creation.rate", "0")];
        let mut doors = doors(&own);
        assert_eq!(doors.on_client(at(0), 1, PLAIN, peer("10.0.0.1")), Verdict::Serve);
        assert_eq!(doors.on_client(at(0), 2, PLAIN, peer("10.0.0.1")), Verdict::Wait);
        assert_eq!(doors.on_client(at(0), 3, OTHER, peer("10.0.0.1")), Verdict::Serve);
        assert_eq!(doors.on_client(at(0), 4, OTHER, peer("10.0.0.1")), Verdict::Wait);
        assert_eq!((doors.change_of(at(0), PLAIN), doors.change_of(at(0), OTHER)), (Some(false), Some(false)));
        assert_eq!(doors.next_deadline(), Some(at(1_000)), "a rate of zero is one a second");
        doors.set_limits(limits(&[]));
        assert_eq!(doors.next_admitted(at(1)).map(|(client, ..)| client), Some(2), "a new limit counts at once");
    }
}
