//! What a value must satisfy beyond its type, in the notation of the files in `table/`.

use crate::value::{Invalid, Value};

/// A bound as it is compared and as it is printed ("0" of an integer, "0.5" of a double).
#[derive(Clone, PartialEq, Debug)]
pub struct Bound {
    pub value: f64,
    pub text: &'static str,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Check {
    None,
    Range {
        min: Option<Bound>,
        max: Option<Bound>,
    },
    /// One of these texts.
    OneOf(Vec<&'static str>),
    OneOfAnyCase(Vec<&'static str>),
    /// A list without empty entries, each one of these texts if there are any.
    Entries {
        empty: bool,
        null: bool,
        valid: Vec<&'static str>,
    },
    NonEmpty,
    NonNull,
    ThrottledReplicas,
    QuorumVoters,
    BootstrapServers,
    GzipLevel,
    ShareReset,
}

impl Check {
    /// Reads one field of a table; none if the notation is not understood, which a test excludes.
    pub(crate) fn decode(text: &'static str) -> Option<Check> {
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        let names = |list: &'static str| list.split(',').filter(|name| !name.is_empty()).collect::<Vec<_>>();
        Some(match word {
            "" => Check::None,
            "range" => {
                let (min, max) = rest.split_once("..")?;
                let bound = |text: &'static str| text.parse().ok().map(|value| Bound { value, text });
                Check::Range { min: bound(min), max: bound(max) }
            }
            "in" => Check::OneOf(names(rest)),
            "in-any-case" => Check::OneOfAnyCase(names(rest)),
            "list" => {
                let (mode, valid) = rest.split_once(' ')?;
                Check::Entries {
                    empty: mode.starts_with("empty"),
                    null: mode.ends_with("-or-null"),
                    valid: names(valid),
                }
            }
            "non-empty" => Check::NonEmpty,
            "non-null" => Check::NonNull,
            "throttled-replicas" => Check::ThrottledReplicas,
            "quorum-voters" => Check::QuorumVoters,
            "bootstrap-servers" => Check::BootstrapServers,
            "gzip-level" => Check::GzipLevel,
            "share-reset" => Check::ShareReset,
            _ => return None,
        })
    }

    /// What a reader of the documentation is told.
    pub fn describe(&self) -> String {
        match self {
            Check::None => String::new(),
            Check::Range { min, max } => {
                let text = |bound: &Option<Bound>| bound.as_ref().map_or("", |bound| bound.text);
                format!("{}..{}", text(min), text(max))
            }
            Check::OneOf(valid) | Check::OneOfAnyCase(valid) => valid.join(", "),
            Check::Entries { valid, .. } if valid.is_empty() => "list without empty entries".to_owned(),
            Check::Entries { valid, .. } => format!("list of {}", valid.join(", ")),
            Check::NonEmpty => "not empty".to_owned(),
            Check::NonNull => "not null".to_owned(),
            Check::ThrottledReplicas => "* or partition:broker,...".to_owned(),
            Check::QuorumVoters => "id@host:port,...".to_owned(),
            Check::BootstrapServers => "host:port,...".to_owned(),
            Check::GzipLevel => "1..9 or -1".to_owned(),
            Check::ShareReset => "latest, earliest or by_duration:PnDTnHnMn.nS".to_owned(),
        }
    }

    /// Kafka drops repeated entries of such a list before it looks at them.
    pub(crate) fn removes_duplicates(&self) -> bool {
        matches!(self, Check::Entries { .. })
    }

    pub fn ensure(&self, name: &str, value: &Value) -> Result<(), Invalid> {
        let refuse = |why: &str| Err(Invalid::value(name, &value.message_text(), why));
        match self {
            Check::None => Ok(()),
            Check::Range { min, max } => {
                let Some(number) = value.as_number() else {
                    return refuse("Value must be non-null");
                };
                if let Some(min) = min.as_ref().filter(|min| number < min.value) {
                    return refuse(&format!("Value must be at least {}", min.text));
                }
                if let Some(max) = max.as_ref().filter(|max| number > max.value) {
                    return refuse(&format!("Value must be no more than {}", max.text));
                }
                Ok(())
            }
            Check::OneOf(valid) => match value.as_text() {
                Some(text) if valid.contains(&text) => Ok(()),
                _ => refuse(&format!("String must be one of: {}", valid.join(", "))),
            },
            Check::OneOfAnyCase(valid) => match value.as_text() {
                Some(text) if valid.contains(&text.to_uppercase().as_str()) => Ok(()),
                _ => refuse(&format!("String must be one of (case insensitive): {}", valid.join(", "))),
            },
            Check::Entries { empty, null, valid } => ensure_entries(name, value, (*empty, *null), valid),
            Check::NonEmpty if value.as_text() == Some("") => refuse("String must be non-empty"),
            Check::NonNull if *value == Value::Null => refuse("entry must be non null"),
            Check::NonEmpty | Check::NonNull => Ok(()),
            Check::ThrottledReplicas => ensure_throttled(name, value),
            Check::QuorumVoters => ensure_voters(name, value),
            Check::BootstrapServers => ensure_servers(name, value),
            Check::GzipLevel => match value.as_integer() {
                Some(-1 | 1..=9) => Ok(()),
                _ => refuse("Value must be between 1 and 9 or equal to -1"),
            },
            Check::ShareReset => ensure_share_reset(name, value),
        }
    }
}

fn ensure_entries(name: &str, value: &Value, (empty, null): (bool, bool), valid: &[&str]) -> Result<(), Invalid> {
    let Some(entries) = value.as_list() else {
        return if null { Ok(()) } else { Err(Invalid(format!("Configuration '{name}' values must not be null."))) };
    };
    if entries.is_empty() && !empty {
        let options =
            if valid.is_empty() { "any non-empty value".to_owned() } else { format!("[{}]", valid.join(", ")) };
        return Err(Invalid(format!("Configuration '{name}' must not be empty. Valid values include: {options}")));
    }
    for entry in entries {
        if entry.is_empty() {
            return Err(Invalid(format!("Configuration '{name}' values must not be empty.")));
        }
        if !valid.is_empty() && !valid.contains(&entry.as_str()) {
            return Err(Invalid::value(name, entry, &format!("String must be one of: {}", valid.join(", "))));
        }
    }
    Ok(())
}

fn ensure_throttled(name: &str, value: &Value) -> Result<(), Invalid> {
    let entries = value.as_list().unwrap_or_default();
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let replica = |entry: &str| {
        entry.is_empty() || entry.split_once(':').is_some_and(|(partition, broker)| digits(partition) && digits(broker))
    };
    if entries.iter().all(|entry| replica(entry.trim())) || entries.concat().trim() == "*" {
        return Ok(());
    }
    let why = format!(
        "{name} must be the literal '*' or a list of replicas in the following format: \
         [partitionId]:[brokerId],[partitionId]:[brokerId],..."
    );
    Err(Invalid::value(name, &value.message_text(), &why))
}

/// The host and port of `host:port`, `[v6]:port` or `PROTOCOL://host:port`.
pub(crate) fn host_and_port(text: &str) -> (Option<&str>, Option<u16>) {
    let address = text.split_once("://").map_or(text, |(_, address)| address);
    let Some((host, port)) = address.rsplit_once(':') else {
        return (None, None);
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | ':' | '%');
    let host = Some(host).filter(|host| !host.is_empty() && host.chars().all(valid));
    (host, port.parse().ok())
}

fn ensure_voters(name: &str, value: &Value) -> Result<(), Invalid> {
    let form = "Each entry should be in the form `{id}@{host}:{port}`.";
    for entry in value.as_list().unwrap_or_default() {
        let parts: Vec<&str> = entry.split('@').collect();
        let &[id, address] = parts.as_slice() else {
            return Err(Invalid(format!("Invalid configuration value for {name}. {form}")));
        };
        if id.trim().parse::<i32>().is_err() {
            return Err(Invalid(format!("Failed to parse voter ID as an integer from {}", id.trim())));
        }
        match host_and_port(address) {
            (Some(_), Some(_)) => {}
            (None, _) => {
                return Err(parse_failure("host name", &format!("entry {entry} for the configuration {name}. {form}")));
            }
            (_, None) => {
                return Err(parse_failure("host port", &format!("entry {entry} for the configuration {name}. {form}")));
            }
        }
    }
    Ok(())
}

fn ensure_servers(name: &str, value: &Value) -> Result<(), Invalid> {
    let form = "Each entry should be in the form \"{host}:{port}\"";
    for entry in value.as_list().unwrap_or_default() {
        match host_and_port(entry) {
            (Some(_), Some(_)) => {}
            (None, _) => {
                return Err(parse_failure("host name", &format!("{entry} for the configuration {name}. {form}")));
            }
            (_, None) => {
                return Err(parse_failure("host port", &format!("{entry} for the configuration {name}. {form}")));
            }
        }
    }
    Ok(())
}

fn parse_failure(what: &str, rest: &str) -> Invalid {
    Invalid(format!("Failed to parse {what} from {rest}"))
}

fn ensure_share_reset(name: &str, value: &Value) -> Result<(), Invalid> {
    let text = value.as_text().unwrap_or_default();
    let known = text.eq_ignore_ascii_case("earliest") || text.eq_ignore_ascii_case("latest");
    if known || text.strip_prefix("by_duration:").is_some_and(is_duration) {
        return Ok(());
    }
    let why = format!(
        "Invalid value `{text}` for configuration {name}. The value must be either 'earliest', 'latest' or of the format \
         'by_duration:<PnDTnHnMn.nS>'."
    );
    Err(Invalid::value(name, text, &why))
}

/// An ISO 8601 duration that is not negative, as Java's `Duration.parse` takes it: days, then hours, minutes, seconds.
fn is_duration(text: &str) -> bool {
    let text = text.strip_prefix('+').unwrap_or(text).to_ascii_uppercase();
    let Some(rest) = text.strip_prefix('P') else {
        return false;
    };
    let (days, time) = rest.split_once('T').map_or((rest, None), |(days, time)| (days, Some(time)));
    let digits = |text: &str| !text.is_empty() && text.len() <= 18 && text.bytes().all(|byte| byte.is_ascii_digit());
    if !days.is_empty() && !days.strip_suffix('D').is_some_and(digits) {
        return false;
    }
    let Some(mut time) = time else {
        return !days.is_empty();
    };
    let mut parts = 0;
    for unit in ['H', 'M', 'S'] {
        let Some((number, rest)) = time.split_once(unit) else {
            continue;
        };
        let whole = number.split_once('.').filter(|(_, fraction)| unit == 'S' && fraction.len() <= 9);
        let valid = match whole {
            Some((whole, fraction)) => digits(whole) && (fraction.is_empty() || digits(fraction)),
            None => digits(number),
        };
        if !valid {
            return false;
        }
        parts += 1;
        time = rest;
    }
    parts > 0 && time.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for good in ["PT1H", "P1D", "P1DT2H3M4.5S", "pt0s", "PT20.S"] {
            assert!(is_duration(good), "{good}");
        }
        for bad in ["", "P", "PT", "1h", "-PT1H", "PT1S1H", "PT1.5H", "P1H", "PT1X"] {
            assert!(!is_duration(bad), "{bad}");
        }
    }

    #[test]
    fn addresses() {
        assert_eq!(host_and_port("a.b:1"), (Some("a.b"), Some(1)));
        assert_eq!(host_and_port("[::1]:9092"), (Some("::1"), Some(9092)));
        assert_eq!(host_and_port("X://:9092"), (None, Some(9092)));
        assert_eq!(host_and_port("a:b"), (Some("a"), None));
        assert_eq!(host_and_port("a"), (None, None));
    }

    #[test]
    fn voters_and_servers() {
        let list = |text: &str| Value::List(vec![text.to_owned()]);
        assert!(Check::QuorumVoters.ensure("v", &list("1@a:2")).is_ok());
        assert!(Check::QuorumVoters.ensure("v", &list("1a:2")).is_err());
        assert!(Check::QuorumVoters.ensure("v", &list("x@a:2")).is_err());
        assert!(Check::BootstrapServers.ensure("v", &list("a:2")).is_ok());
        assert!(Check::BootstrapServers.ensure("v", &list("a:x")).is_err());
    }
}
