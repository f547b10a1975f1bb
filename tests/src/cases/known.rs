//! Differences that are known and kept, each with its case, its place and a reason in the list's remarks. A line is a
//! case and a path in its result; in both `*` stands for anything. Everything else about the case is still compared.

use crate::Result;
use std::cell::Cell;
use std::path::Path;

#[derive(Debug, Default)]
pub struct Known {
    lines: Vec<Line>,
}

#[derive(Debug)]
struct Line {
    case: String,
    path: String,
    /// Whether its case has run, and whether the difference was there.
    ran: Cell<bool>,
    seen: Cell<bool>,
}

impl Known {
    pub fn read(file: &Path) -> Result<Known> {
        let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        Known::parse(&text)
    }

    fn parse(text: &str) -> Result<Known> {
        let mut lines = Vec::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (case, path) = line.split_once(' ').ok_or_else(|| format!("not a case and a path: {line}"))?;
            let (ran, seen) = (Cell::new(false), Cell::new(false));
            lines.push(Line { case: case.to_owned(), path: path.trim().to_owned(), ran, seen });
        }
        Ok(Known { lines })
    }

    /// A case has run: its lines count as stale unless one of its differences follows.
    pub fn begin(&self, case: &str) {
        self.lines.iter().filter(|line| matches(&line.case, case)).for_each(|line| line.ran.set(true));
    }

    pub fn covers(&self, case: &str, path: &str) -> bool {
        let mut found = false;
        for line in self.lines.iter().filter(|line| matches(&line.case, case) && matches(&line.path, path)) {
            line.seen.set(true);
            found = true;
        }
        found
    }

    /// Lines whose cases have run without the difference.
    pub fn stale(&self) -> impl Iterator<Item = String> {
        self.lines.iter().filter(|l| l.ran.get() && !l.seen.get()).map(|line| format!("{} {}", line.case, line.path))
    }
}

/// Whether `text` is what `pattern` says, `*` standing for any characters.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let mut open = false;
    for part in parts {
        open = true;
        if part.is_empty() {
            continue;
        }
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        open = false;
    }
    // A part may occur earlier than where the text ends with it.
    rest.is_empty()
        || open
        || pattern.rsplit('*').next().is_some_and(|last| pattern.contains('*') && rest.ends_with(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_anything() {
        for (pattern, text) in
            [("a", "a"), ("a*", "abc"), ("*c", "abcc"), ("raw/P/v*", "raw/P/v13"), ("/x/*/y", "/x/1/2/y")]
        {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("a", "ab"), ("*b", "abc"), ("a*d", "abc"), ("/x/*/y", "/x/1/z")] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn a_difference_is_covered_by_its_line_and_a_line_without_one_is_stale() {
        let known = Known::parse("# why\nraw/A/v* /one/*/code\n\nraw/B/v1 /two\n").expect("a list");
        known.begin("raw/A/v3");
        known.begin("raw/B/v1");
        assert!(known.covers("raw/A/v3", "/one/0/code"));
        assert!(!known.covers("raw/A/v3", "/one/0/text"));
        assert_eq!(known.stale().collect::<Vec<_>>(), ["raw/B/v1 /two"]);
        assert!(Known::parse("no-path").is_err());
    }
}
