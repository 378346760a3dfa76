//! All engines behave equally under any sequence of operations, including rejected ones.

use proptest::prelude::*;
use warren_log::{LogEngine, LogStore, MemoryDisk, WriteBatch};
use warren_testkit::soak;

use crate::{entries, hard_state, members, open, snapshot};

#[derive(Debug, Clone)]
enum ModelOperation {
    /// Entries from `start` on, and possibly a hard state and members.
    Append {
        start: u64,
        count: u64,
        term: u64,
        hard_state: bool,
        conf_state: bool,
    },
    Install {
        index: u64,
        term: u64,
        entries: u64,
    },
    SetSnapshot {
        index: u64,
    },
    Compact {
        up_to: u64,
    },
    Reopen,
}

fn operation() -> impl Strategy<Value = ModelOperation> {
    let append = (0..20u64, 0..5u64, 1..4u64, any::<bool>(), any::<bool>()).prop_map(
        |(start, count, term, hard_state, conf_state)| ModelOperation::Append {
            start,
            count,
            term,
            hard_state,
            conf_state,
        },
    );
    let install = (0..20u64, 1..4u64, 0..3u64).prop_map(|(index, term, entries)| ModelOperation::Install {
        index,
        term,
        entries,
    });
    prop_oneof![
        6 => append,
        1 => install,
        2 => (0..20u64).prop_map(|index| ModelOperation::SetSnapshot { index }),
        2 => (0..20u64).prop_map(|up_to| ModelOperation::Compact { up_to }),
        1 => Just(ModelOperation::Reopen),
    ]
}

/// Runs the operation; returns its observable result.
fn run(store: &mut dyn LogStore, operation: &ModelOperation) -> Result<(), String> {
    let done = match *operation {
        ModelOperation::Append { start, count, term, hard_state: hard, conf_state } => {
            let entries = (count > 0).then(|| entries(start..=start + count - 1, term));
            store.append(&WriteBatch {
                snapshot: None,
                entries: entries.unwrap_or_default(),
                hard_state: hard.then(|| hard_state(term, 1, start)),
                conf_state: conf_state.then(|| members(&[start, term], &[count])),
                acknowledged: hard.then(|| crate::suite::acknowledged(start)),
            })
        }
        ModelOperation::Install { index, term, entries: count } => store.append(&WriteBatch {
            snapshot: Some(snapshot(index, term)),
            entries: (0..count).flat_map(|n| entries(index + 1 + n..=index + 1 + n, term)).collect(),
            ..WriteBatch::default()
        }),
        ModelOperation::SetSnapshot { index } => store.set_snapshot(&snapshot(index, 1)),
        ModelOperation::Compact { up_to } => store.compact(up_to),
        ModelOperation::Reopen => Ok(()),
    };
    done.map_err(|error| error.to_string())
}

/// Runs the same operations on an engine and in memory, and compares after each.
fn check(engine: LogEngine, operations: &[ModelOperation]) -> Result<(), TestCaseError> {
    let dir = tempfile::tempdir().unwrap();
    let disk = MemoryDisk::new();
    let mut stored = Some(open(dir.path(), engine).unwrap());
    let mut memory = disk.open();
    for operation in operations {
        if matches!(operation, ModelOperation::Reopen) {
            drop(stored.take());
            memory = disk.open();
        }
        let stored = stored.get_or_insert_with(|| open(dir.path(), engine).unwrap());
        prop_assert_eq!(run(&mut **stored, operation), run(&mut memory, operation));
        prop_assert_eq!(stored.load().unwrap(), memory.load().unwrap());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: soak::count(24, 1000) as u32, failure_persistence: None, ..Default::default()
    })]

    #[test]
    fn redb_equals_memory(operations in prop::collection::vec(operation(), 1..24)) {
        check(LogEngine::Redb, &operations)?;
    }

    #[test]
    fn sled_equals_memory(operations in prop::collection::vec(operation(), 1..24)) {
        check(LogEngine::Sled, &operations)?;
    }
}
