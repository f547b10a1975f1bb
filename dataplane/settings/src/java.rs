//! The few habits of Java's library that clients see in values and messages: what counts as blank, as a number, and how
//! a double reads.

/// Java's `String.trim`: everything up to and including the space is cut at both ends, Unicode blanks are not.
pub(crate) fn trim(text: &str) -> &str {
    text.trim_matches(|c: char| c <= ' ')
}

/// Splits at commas and drops the blanks around them, keeping empty parts, as Kafka splits a list.
pub(crate) fn split_list(text: &str) -> Vec<String> {
    let text = trim(text);
    if text.is_empty() {
        return Vec::new();
    }
    let blank = |c: char| matches!(c, ' ' | '\t' | '\n' | '\u{b}' | '\u{c}' | '\r');
    let parts: Vec<&str> = text.split(',').collect();
    let last = parts.len() - 1;
    let cut = |(at, part): (usize, &str)| {
        let part = if at > 0 { part.trim_start_matches(blank) } else { part };
        if at < last { part.trim_end_matches(blank).to_owned() } else { part.to_owned() }
    };
    parts.into_iter().enumerate().map(cut).collect()
}

/// Java's `String.split(",")`: trailing empty parts are dropped, but an empty text is one empty part.
pub(crate) fn split_dropping_trailing(text: &str) -> Vec<&str> {
    if text.is_empty() {
        return vec![""];
    }
    let mut parts: Vec<&str> = text.split(',').collect();
    while parts.last() == Some(&"") {
        parts.pop();
    }
    parts
}

/// `Integer.parseInt` and its siblings: an optional sign and decimal digits, nothing else.
pub(crate) fn parse_integer(text: &str) -> Option<i64> {
    text.parse::<i64>().ok()
}

/// `Double.parseDouble` without its hexadecimal form: an optional sign, then a decimal with an optional exponent and
/// an optional type letter, or one of its two words.
pub(crate) fn parse_double(text: &str) -> Option<f64> {
    let text = trim(text);
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let sign = if text.starts_with('-') { -1.0 } else { 1.0 };
    match unsigned {
        "NaN" => return Some(f64::NAN),
        "Infinity" => return Some(sign * f64::INFINITY),
        _ => {}
    }
    let digits = unsigned.strip_suffix(['d', 'D', 'f', 'F']).unwrap_or(unsigned);
    let plain = digits.chars().all(|c| matches!(c, '0'..='9' | '.' | 'e' | 'E' | '+' | '-'));
    if !plain || digits.starts_with(['+', '-']) {
        return None;
    }
    digits.parse::<f64>().ok().map(|value| sign * value)
}

/// `Double.toString`: a decimal with at least one digit after the point between 1e-3 and 1e7, else `1.5E-9`.
pub(crate) fn double_text(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity".to_owned() } else { "-Infinity".to_owned() };
    }
    let magnitude = value.abs();
    if magnitude == 0.0 || (1e-3..1e7).contains(&magnitude) {
        let text = format!("{value}");
        return if text.contains('.') { text } else { format!("{text}.0") };
    }
    let text = format!("{value:E}");
    match text.split_once('E') {
        Some((mantissa, exponent)) if !mantissa.contains('.') => format!("{mantissa}.0E{exponent}"),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_read_as_java_writes_them() {
        let cases = [
            (0.5, "0.5"),
            (1.0, "1.0"),
            (-1e-9, "-1.0E-9"),
            (12_345_678.0, "1.2345678E7"),
            (0.001, "0.001"),
            (1e7, "1.0E7"),
            (f64::MAX, "1.7976931348623157E308"),
            (0.0, "0.0"),
        ];
        for (value, text) in cases {
            assert_eq!(double_text(value), text);
        }
    }

    #[test]
    fn doubles_parse_as_in_java() {
        assert_eq!(parse_double(" 1d "), Some(1.0));
        assert_eq!(parse_double("-1e-9"), Some(-1e-9));
        assert_eq!(parse_double(".5"), Some(0.5));
        assert!(parse_double("NaN").is_some_and(f64::is_nan));
        for refused in ["", "x", "inf", "nan", "--1", "1dd", "+-1", "infinity"] {
            assert_eq!(parse_double(refused), None, "{refused}");
        }
    }

    #[test]
    fn lists_keep_empty_parts_and_lose_blanks() {
        assert_eq!(split_list(" a , b,,c, "), ["a", "b", "", "c", ""]);
        assert_eq!(split_list("  "), Vec::<String>::new());
        assert_eq!(split_dropping_trailing("a,b,,"), ["a", "b"]);
        assert_eq!(split_dropping_trailing(""), [""]);
    }
}
