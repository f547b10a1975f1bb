//! A parsed value, and how Kafka parses and prints one.

use crate::java;
use crate::kind::Kind;
use std::fmt;

/// A value in the type of its setting. Kafka's conventions (-1, -2) stay numbers here; `TopicSettings` and
/// `BrokerValues` give them meaning.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    Null,
    Boolean(bool),
    /// A string, a class by its name, or a password.
    Text(Box<str>),
    Int(i32),
    Short(i16),
    Long(i64),
    Double(f64),
    List(Vec<String>),
}

/// A value that Kafka does not take; the message is Kafka's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Invalid(pub String);

impl Invalid {
    pub(crate) fn value(name: &str, value: &str, why: &str) -> Invalid {
        Invalid(format!("Invalid value {value} for configuration {name}: {why}"))
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for Invalid {}

/// Which of Kafka's error codes a refused change is answered with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusalKind {
    InvalidConfig,
    InvalidRequest,
}

/// A change of settings that was refused, as the client is to be told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    pub kind: RefusalKind,
    pub message: String,
}

impl Refusal {
    pub(crate) fn config(message: impl Into<String>) -> Refusal {
        Refusal { kind: RefusalKind::InvalidConfig, message: message.into() }
    }

    pub(crate) fn request(message: impl Into<String>) -> Refusal {
        Refusal { kind: RefusalKind::InvalidRequest, message: message.into() }
    }
}

impl From<Invalid> for Refusal {
    fn from(invalid: Invalid) -> Refusal {
        Refusal::config(invalid.0)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for Refusal {}

impl Value {
    pub fn parse(name: &str, raw: &str, kind: Kind) -> Result<Value, Invalid> {
        let text = java::trim(raw);
        let not_a_number = || Invalid::value(name, raw, &format!("Not a number of type {}", kind.name()));
        let integer = || java::parse_integer(text).ok_or_else(not_a_number);
        match kind {
            Kind::Boolean if text.eq_ignore_ascii_case("true") => Ok(Value::Boolean(true)),
            Kind::Boolean if text.eq_ignore_ascii_case("false") => Ok(Value::Boolean(false)),
            Kind::Boolean => Err(Invalid::value(name, raw, "Expected value to be either true or false")),
            Kind::String | Kind::Password | Kind::Class => Ok(Value::Text(text.into())),
            Kind::Int => i32::try_from(integer()?).map(Value::Int).map_err(|_| not_a_number()),
            Kind::Short => i16::try_from(integer()?).map(Value::Short).map_err(|_| not_a_number()),
            Kind::Long => integer().map(Value::Long),
            Kind::Double => java::parse_double(text).map(Value::Double).ok_or_else(not_a_number),
            Kind::List => Ok(Value::List(java::split_list(text))),
        }
    }

    /// The text DescribeConfigs gives; none for null.
    pub fn text(&self) -> Option<String> {
        match self {
            Value::Null => None,
            Value::Boolean(value) => Some(value.to_string()),
            Value::Text(value) => Some(value.to_string()),
            Value::Int(value) => Some(value.to_string()),
            Value::Short(value) => Some(value.to_string()),
            Value::Long(value) => Some(value.to_string()),
            Value::Double(value) => Some(java::double_text(*value)),
            Value::List(values) => Some(values.join(",")),
        }
    }

    /// The text Kafka's messages give.
    pub(crate) fn message_text(&self) -> String {
        match self {
            Value::List(values) => format!("[{}]", values.join(", ")),
            other => other.text().unwrap_or_else(|| "null".to_owned()),
        }
    }

    pub fn as_number(&self) -> Option<f64> {
        match self {
            Value::Int(value) => Some(f64::from(*value)),
            Value::Short(value) => Some(f64::from(*value)),
            Value::Long(value) => Some(*value as f64),
            Value::Double(value) => Some(*value),
            _ => None,
        }
    }

    pub fn as_integer(&self) -> Option<i64> {
        match self {
            Value::Int(value) => Some(i64::from(*value)),
            Value::Short(value) => Some(i64::from(*value)),
            Value::Long(value) => Some(*value),
            _ => None,
        }
    }

    pub fn as_boolean(&self) -> Option<bool> {
        match self {
            Value::Boolean(value) => Some(*value),
            _ => None,
        }
    }

    pub fn as_double(&self) -> Option<f64> {
        match self {
            Value::Double(value) => Some(*value),
            _ => None,
        }
    }

    pub fn as_text(&self) -> Option<&str> {
        match self {
            Value::Text(value) => Some(value),
            _ => None,
        }
    }

    pub fn as_list(&self) -> Option<&[String]> {
        match self {
            Value::List(values) => Some(values),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(raw: &str, kind: Kind) -> String {
        Value::parse("y", raw, kind).unwrap_err().0
    }

    #[test]
    fn values_parse_by_kafkas_rules() {
        assert_eq!(Value::parse("y", " TRUE ", Kind::Boolean), Ok(Value::Boolean(true)));
        assert_eq!(Value::parse("y", " +5 ", Kind::Int), Ok(Value::Int(5)));
        assert_eq!(Value::parse("y", "-1", Kind::Long), Ok(Value::Long(-1)));
        assert_eq!(Value::parse("y", "a , b", Kind::List), Ok(Value::List(vec!["a".into(), "b".into()])));
        assert_eq!(Value::parse("y", " x ", Kind::String), Ok(Value::Text("x".into())));
    }

    #[test]
    fn refusals_read_as_kafkas() {
        assert_eq!(
            message("yes", Kind::Boolean),
            "Invalid value yes for configuration y: Expected value to be either true or false"
        );
        assert_eq!(
            message("2147483648", Kind::Int),
            "Invalid value 2147483648 for configuration y: Not a number of type INT"
        );
        assert_eq!(
            message("32768", Kind::Short),
            "Invalid value 32768 for configuration y: Not a number of type SHORT"
        );
        assert_eq!(message("1.5", Kind::Long), "Invalid value 1.5 for configuration y: Not a number of type LONG");
        assert_eq!(message("", Kind::Double), "Invalid value  for configuration y: Not a number of type DOUBLE");
    }
}
