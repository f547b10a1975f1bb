//! Kafka's listeners: addresses to open, addresses to tell, and the protocol of each.

use crate::broker::BrokerSettings;
use crate::check::host_and_port;

/// One address under the name of its listener, which Kafka writes in capitals.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listener {
    pub name: String,
    /// Empty is every address of the machine, and, told to clients, the machine's name.
    pub host: String,
    pub port: u16,
    /// Named by controller.listener.names: for the quorum, never told to clients.
    pub controller: bool,
}

/// The listeners to open and, of the brokers' ones, what to tell clients.
pub(crate) fn listeners(broker: &BrokerSettings) -> Result<(Vec<Listener>, Vec<Listener>), String> {
    let controllers: Vec<String> =
        broker.list("controller.listener.names").iter().map(|name| name.to_uppercase()).collect();
    let parse = |setting: &str| {
        let one = |text: &String| parse_listener(setting, text, &controllers);
        broker.list(setting).iter().map(one).collect::<Result<Vec<Listener>, String>>()
    };
    let open = parse("listeners")?;
    ensure_distinct(&open)?;
    let protocols = broker.text("listener.security.protocol.map").unwrap_or_default();
    for listener in &open {
        ensure_plaintext(listener, protocols, broker.file().contains_key("listener.security.protocol.map"))?;
    }
    let mut advertised = parse("advertised.listeners")?;
    if advertised.is_empty() {
        advertised = open.clone();
    }
    advertised.retain(|listener| !listener.controller);
    for listener in &advertised {
        if matches!(listener.host.as_str(), "0.0.0.0" | "::") {
            return Err(format!(
                "advertised.listeners cannot use the nonroutable meta-address {}. Use a routable IP address. \
                 (Without advertised.listeners, what listeners says is advertised.)",
                listener.host
            ));
        }
        if !open.iter().any(|known| known.name == listener.name) {
            let name = &listener.name;
            return Err(format!("advertised.listeners names {name}, which listeners does not open"));
        }
    }
    if advertised.is_empty() {
        return Err("listeners opens no listener for clients".to_owned());
    }
    Ok((open, advertised))
}

fn parse_listener(setting: &str, text: &str, controllers: &[String]) -> Result<Listener, String> {
    let malformed = || format!("{setting} holds '{text}'; write NAME://HOST:PORT");
    let (name, address) = text.split_once("://").ok_or_else(malformed)?;
    let name = name.trim().to_uppercase();
    let port_only = address.strip_prefix(':').and_then(|port| port.parse::<u16>().ok());
    let (host, port) = match (port_only, host_and_port(address)) {
        (Some(port), _) => (String::new(), port),
        (None, (Some(host), Some(port))) => (host.to_owned(), port),
        _ => return Err(malformed()),
    };
    if name.is_empty() {
        return Err(malformed());
    }
    let controller = controllers.contains(&name);
    Ok(Listener { name, host, port, controller })
}

fn ensure_distinct(open: &[Listener]) -> Result<(), String> {
    for (at, listener) in open.iter().enumerate() {
        for earlier in &open[..at] {
            if earlier.name == listener.name {
                return Err(format!("listeners opens {} twice", listener.name));
            }
            // A listener for each family may share a port; port 0 is a different one each time.
            let families = earlier.host.contains(':') != listener.host.contains(':');
            if earlier.port == listener.port && listener.port != 0 && !families {
                return Err(format!("listeners opens port {} twice", listener.port));
            }
        }
    }
    Ok(())
}

fn ensure_plaintext(listener: &Listener, protocols: &str, map_is_set: bool) -> Result<(), String> {
    let pair = |entry: &str| {
        entry.rsplit_once(':').map(|(name, protocol)| (name.trim().to_uppercase(), protocol.trim().to_owned()))
    };
    let found = protocols.split(',').filter_map(pair).find(|(name, _)| *name == listener.name);
    match found {
        Some((_, protocol)) if protocol == "PLAINTEXT" => Ok(()),
        Some((name, protocol)) => {
            Err(format!("listeners opens {name} for {protocol}, but TLS and SASL do not exist yet"))
        }
        // Kafka lets a controller's listener go without an entry as long as the map is untouched.
        None if listener.controller && !map_is_set => Ok(()),
        None => Err(format!("listener.security.protocol.map says no protocol for {} of listeners", listener.name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::Texts;

    fn parse(pairs: &[(&str, &str)]) -> Result<(Vec<Listener>, Vec<Listener>), String> {
        let fixed =
            [("node.id", "1"), ("process.roles", "broker,controller"), ("controller.listener.names", "CONTROLLER")];
        let texts: Texts =
            fixed.iter().chain(pairs).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        listeners(&BrokerSettings::from_file(&texts).unwrap())
    }

    #[test]
    fn listeners_are_parsed_and_told() {
        let (open, told) = parse(&[("listeners", "plaintext://:9092,CONTROLLER://h:9093")]).unwrap();
        assert_eq!(open.len(), 2);
        assert!(open[1].controller);
        assert_eq!(told, open[..1]);
        assert_eq!((told[0].name.as_str(), told[0].host.as_str()), ("PLAINTEXT", ""));
        let (_, told) =
            parse(&[("listeners", "PLAINTEXT://0.0.0.0:1"), ("advertised.listeners", "PLAINTEXT://a.example:2")])
                .unwrap();
        assert_eq!((told[0].host.as_str(), told[0].port), ("a.example", 2));
    }

    #[test]
    fn bad_listeners_are_refused() {
        let reason = |pairs: &[(&str, &str)]| parse(pairs).unwrap_err();
        assert!(reason(&[("listeners", "PLAINTEXT://0.0.0.0:9092")]).contains("0.0.0.0"));
        assert!(reason(&[("listeners", "SSL://:9092")]).contains("TLS and SASL"));
        assert!(reason(&[("listeners", "X://:9092")]).contains("no protocol for X"));
        assert!(reason(&[("listeners", "PLAINTEXT://a:b")]).contains("NAME://HOST:PORT"));
        assert!(reason(&[("listeners", "PLAINTEXT://:1,CONTROLLER://:1")]).contains("port 1 twice"));
        assert!(reason(&[("listeners", "CONTROLLER://:1")]).contains("no listener for clients"));
        assert!(
            reason(&[("listeners", "PLAINTEXT://:1"), ("advertised.listeners", "SSL://a:1")]).contains("does not open")
        );
    }
}
