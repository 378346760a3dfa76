//! Whether this machine has other things to do, for what is asserted of times.

/// True when processes wait for a CPU: over the last minute there were twice as many to run as there are CPUs
/// (proc(5), `loadavg`).
#[must_use]
pub fn is_heavy() -> bool {
    let text = std::fs::read_to_string("/proc/loadavg").expect("/proc is mounted");
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    means_heavy(&text, cpus)
}

fn means_heavy(loadavg: &str, cpus: usize) -> bool {
    let last_minute: f64 =
        loadavg.split(' ').next().and_then(|text| text.parse().ok()).expect("proc(5) says how it looks");
    last_minute > 2.0 * cpus as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_as_many_as_there_are_cpus_are_heavy() {
        for (text, cpus, wanted) in [
            ("0.00 0.01 0.05 1/300 12\n", 1, false),
            ("4.00 9.00 9.00 3/300 12\n", 2, false),
            ("4.01 0.00 0.00 3/300 12\n", 2, true),
            ("9.50 0.00 0.00 3/300 12\n", 8, false),
        ] {
            assert_eq!(means_heavy(text, cpus), wanted, "{text:?} with {cpus}");
        }
        let own = std::fs::read_to_string("/proc/loadavg").unwrap();
        assert!(!means_heavy(&own, usize::MAX), "{own:?} is read");
    }
}
