//! Which logs of ended tasks a node removes.

use std::cmp::Reverse;

use warren_types::{Bytes, LOG_RETENTION, RetainedLog, TaskId, Timestamp};

/// The files of the log of an ended task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetainedLogFiles {
    /// What managers say about it.
    pub log: RetainedLog,
    /// Their size.
    pub size: Bytes,
    /// When they were last written.
    pub written_at: Timestamp,
}

/// The logs to remove: those older than [`LOG_RETENTION`]; those of a slot that exceed its log limits
/// together, except for the newest; then the oldest, until `shortage` bytes are freed.
pub fn logs_to_remove(mut stored: Vec<RetainedLogFiles>, now: Timestamp, shortage: Bytes) -> Vec<TaskId> {
    // The newest task of each slot first.
    stored.sort_unstable_by_key(|found| {
        let RetainedLog { task, slot, .. } = found.log;
        (task.service, slot, Reverse(task.number))
    });
    let (mut kept, mut removed, mut freed) = (Vec::new(), Vec::new(), 0u64);
    for slot in stored
        .chunk_by(|one, next| (one.log.task.service, one.log.slot) == (next.log.task.service, next.log.slot))
    {
        let mut sum = 0u64;
        for (newer, found) in slot.iter().enumerate() {
            sum = sum.saturating_add(found.size.0);
            let limits = found.log.limits;
            let limit = limits.max_size.0.saturating_mul(u64::from(limits.max_files));
            let is_old = now.saturating_since(found.written_at) >= LOG_RETENTION;
            if is_old || (newer > 0 && sum > limit) {
                freed = freed.saturating_add(found.size.0);
                removed.push(found.log.task);
            } else {
                kept.push(found);
            }
        }
    }
    kept.sort_unstable_by_key(|found| (found.written_at, found.log.task));
    for found in kept {
        if freed >= shortage.0 {
            break;
        }
        freed = freed.saturating_add(found.size.0);
        removed.push(found.log.task);
    }
    removed
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use warren_types::{Id, LogLimits, ServiceId};

    use super::*;

    const NOW: Timestamp = Timestamp(1_000_000_000_000);

    /// A log of a slot that may take 100 bytes.
    fn stored(slot: u32, number: u64, size: u64, age: Duration) -> RetainedLogFiles {
        let task = TaskId { service: ServiceId(Id(1)), number };
        let limits = LogLimits { max_size: Bytes(50), max_files: 2 };
        let written_at = Timestamp(NOW.0 - u64::try_from(age.as_millis()).unwrap());
        RetainedLogFiles { log: RetainedLog { task, slot, limits }, size: Bytes(size), written_at }
    }

    fn minutes(count: u64) -> Duration {
        Duration::from_secs(60 * count)
    }

    #[track_caller]
    fn check(logs: &[RetainedLogFiles], shortage: u64, expected: &[u64]) {
        let removed = logs_to_remove(logs.to_vec(), NOW, Bytes(shortage));
        assert_eq!(removed.iter().map(|task| task.number).collect::<Vec<_>>(), expected);
        let left: Vec<_> = logs.iter().filter(|found| !removed.contains(&found.log.task)).cloned().collect();
        let freed: u64 = removed.len() as u64;
        assert!(freed > 0 || left == logs);
        assert_eq!(logs_to_remove(left, NOW, Bytes(0)), [], "the second time");
    }

    #[test]
    fn logs_within_limits_stay() {
        check(&[], 0, &[]);
        check(&[stored(1, 1, 50, minutes(9)), stored(1, 2, 50, minutes(1))], 0, &[]);
    }

    #[test]
    fn oldest_logs_beyond_limits_of_slot_are_removed() {
        let logs = [
            stored(1, 1, 10, minutes(9)),
            stored(1, 2, 60, minutes(8)),
            stored(1, 3, 40, minutes(7)),
            stored(2, 4, 80, minutes(6)),
            stored(1, 5, 30, minutes(5)),
        ];
        check(&logs, 0, &[2, 1]);
        check(&[stored(1, 1, 200, minutes(9))], 0, &[]);
        check(&[stored(1, 1, 1, minutes(9)), stored(1, 2, 200, minutes(1))], 0, &[1]);
    }

    #[test]
    fn old_log_is_removed() {
        let (old, young) = (LOG_RETENTION, LOG_RETENTION - Duration::from_millis(1));
        check(&[stored(1, 1, 10, old), stored(1, 2, 10, young)], 0, &[1]);
        check(&[stored(1, 1, 10, old)], 0, &[1]);
    }

    #[test]
    fn low_disk_removes_oldest_logs_first() {
        let logs = [
            stored(2, 1, 40, minutes(5)),
            stored(1, 2, 40, minutes(9)),
            stored(3, 3, 40, minutes(1)),
            stored(1, 4, 40, minutes(7)),
        ];
        check(&logs, 0, &[]);
        check(&logs, 1, &[2]);
        check(&logs, 41, &[2, 4]);
        check(&logs, 9999, &[2, 4, 1, 3]);
    }

    #[test]
    fn log_of_the_future_stays() {
        let mut log = stored(1, 1, 10, minutes(0));
        log.written_at = Timestamp(NOW.0 + 1);
        check(&[log], 0, &[]);
    }
}
