//! For assertions about times: whether this machine is under other load, and times that do not include it.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// CPU time that this thread has used (getrusage(2)).
#[must_use]
pub fn thread_cpu_time() -> Duration {
    let used = getrusage(UsageWho::RUSAGE_THREAD).expect("the kernel is newer than 2.6.26");
    let micros = (used.user_time() + used.system_time()).num_microseconds();
    Duration::from_micros(micros.try_into().expect("CPU time is not negative"))
}

/// True when processes wait for a CPU: over the last minute twice as many were runnable as there are CPUs
/// (proc(5), `loadavg`).
#[must_use]
pub fn is_heavy() -> bool {
    let text = std::fs::read_to_string("/proc/loadavg").expect("/proc is mounted");
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    means_heavy(&text, cpus)
}

fn means_heavy(loadavg: &str, cpus: usize) -> bool {
    let last_minute: f64 = loadavg
        .split(' ')
        .next()
        .and_then(|text| text.parse().ok())
        .expect("/proc/loadavg begins with a number, see proc(5)");
    last_minute > 2.0 * cpus as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_of_twice_the_cpus_is_heavy() {
        for (text, cpus, expected) in [
            ("0.00 0.01 0.05 1/300 12\n", 1, false),
            ("4.00 9.00 9.00 3/300 12\n", 2, false),
            ("4.01 0.00 0.00 3/300 12\n", 2, true),
            ("9.50 0.00 0.00 3/300 12\n", 8, false),
        ] {
            assert_eq!(means_heavy(text, cpus), expected, "{text:?} with {cpus}");
        }
        let own = std::fs::read_to_string("/proc/loadavg").unwrap();
        assert!(!means_heavy(&own, usize::MAX), "{own:?} is read");
    }
}
