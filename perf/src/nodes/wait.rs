//! Waiting for a condition, never for a time.

use super::Result;
use std::time::{Duration, Instant};

/// Between two looks at a condition that nobody announces.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// Looks at `condition` until it yields something, for `patience` at most.
pub fn until<T>(what: &str, patience: Duration, mut condition: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let end = Instant::now() + patience;
    loop {
        if let Some(found) = condition()? {
            return Ok(found);
        }
        if Instant::now() >= end {
            return Err(format!("waited {patience:?} in vain for {what}").into());
        }
        std::thread::sleep(BETWEEN_LOOKS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_looked_at_until_it_holds_or_time_is_up() {
        let mut looks = 0;
        let found = until("three looks", Duration::from_secs(5), || {
            looks += 1;
            Ok((looks == 3).then_some(looks))
        });
        assert_eq!(found.ok(), Some(3));
        let error = until::<()>("nothing", Duration::from_millis(1), || Ok(None)).expect_err("it never holds");
        assert!(error.to_string().contains("nothing"));
        assert!(until::<()>("a fault", Duration::from_secs(5), || Err("fault".into())).is_err());
    }
}
