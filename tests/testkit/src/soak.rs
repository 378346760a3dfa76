//! Repetitions of a test: few in `make test`, many in `make soak`.

/// The environment variable that `make soak` sets.
pub const VARIABLE: &str = "WARREN_SOAK";

/// True under `make soak`: the variable is set, and neither empty nor `0`.
#[must_use]
pub fn is_on() -> bool {
    std::env::var(VARIABLE).is_ok_and(|value| means_on(&value))
}

/// `small` in `make test`, `large` in `make soak`.
#[must_use]
pub fn count(small: usize, large: usize) -> usize {
    if is_on() { large } else { small }
}

fn means_on(value: &str) -> bool {
    !matches!(value, "" | "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_value_and_zero_mean_off() {
        assert!(!means_on(""));
        assert!(!means_on("0"));
        assert!(means_on("1"));
        assert_eq!(count(3, 100), if is_on() { 100 } else { 3 });
    }
}
