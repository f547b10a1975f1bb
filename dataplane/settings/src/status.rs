//! What Pollux does with each setting: read from `table/status.txt`, where a line speaks for one name or, with a star at
//! its end, for all names that begin so; the longest line that fits wins.

use crate::kind::Scope;
use std::sync::LazyLock;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// It does what it does in Kafka; these tests show it. What it does not do yet is said.
    Honoured { test: &'static str, but: Option<&'static str> },
    /// Any value Kafka takes is taken, listed and kept, and changes nothing.
    AcceptedWithoutEffect { why: &'static str },
    /// Only its default is taken, since another value would promise what is not there.
    Refused { why: &'static str },
}

impl Status {
    pub fn word(self) -> &'static str {
        match self {
            Status::Honoured { .. } => "honoured",
            Status::AcceptedWithoutEffect { .. } => "accepted without effect",
            Status::Refused { .. } => "refused",
        }
    }

    /// The names of the tests of a setting that is honoured.
    pub fn tests(self) -> impl Iterator<Item = &'static str> {
        let names = if let Status::Honoured { test, .. } = self { test } else { "" };
        names.split(", ").filter(|name| !name.is_empty())
    }
}

struct Line {
    scope: &'static str,
    pattern: &'static str,
    status: Status,
}

static LINES: LazyLock<Vec<Line>> = LazyLock::new(|| {
    let table = include_str!("../table/status.txt");
    let speaking = table.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    speaking.map(|line| decode(line).unwrap_or_else(|| panic!("bad line in the status table: {line}"))).collect()
});

fn decode(line: &'static str) -> Option<Line> {
    let fields: Vec<&'static str> = line.split('|').collect();
    let (&[scope, pattern, word, text], but) = fields.split_first_chunk::<4>()?;
    let status = match (word, but) {
        ("honoured", []) => Status::Honoured { test: text, but: None },
        ("honoured", [but]) => Status::Honoured { test: text, but: Some(but) },
        ("accepted", []) => Status::AcceptedWithoutEffect { why: text },
        ("refused", []) => Status::Refused { why: text },
        _ => return None,
    };
    (!text.is_empty()).then_some(Line { scope, pattern, status })
}

fn fits(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |prefix| name.starts_with(prefix))
}

pub(crate) fn of(scope: Scope, name: &str) -> Option<Status> {
    let fitting = LINES.iter().filter(|line| line.scope == scope.name() && fits(line.pattern, name));
    fitting.max_by_key(|line| (!line.pattern.ends_with('*'), line.pattern.len())).map(|line| line.status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;

    #[test]
    fn every_line_speaks_for_some_setting() {
        let catalog = Catalog::get();
        for line in LINES.iter() {
            let scope = Scope::ALL.into_iter().find(|scope| scope.name() == line.scope).unwrap();
            let quotas = if scope == Scope::Broker { catalog.broker_quotas() } else { &[] };
            let mut names =
                catalog.settings(scope).iter().chain(quotas).filter(|setting| fits(line.pattern, setting.name));
            assert!(names.any(|setting| setting.status == line.status), "{} {} is idle", line.scope, line.pattern);
        }
    }
}
