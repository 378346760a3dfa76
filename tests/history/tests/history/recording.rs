//! The recorder with clients on several threads.

use std::sync::Mutex;
use std::thread;

use warren_test_history::{
    Acknowledgement, Conflict, HistoryRecorder, LinearizabilityVerdict, OperationOutcome, RegisterOperation,
    SearchLimit, check,
};

#[test]
fn threads_share_one_history() {
    let (recorder, register) = (HistoryRecorder::default(), Mutex::new((0, 0)));
    thread::scope(|scope| {
        for client in 0..8 {
            let (recorder, register) = (recorder.clone(), &register);
            scope.spawn(move || {
                for number in 0..100 {
                    let value = u64::from(client) * 1_000 + number;
                    let asked = recorder.read(client, "a");
                    let (found, version) = *register.lock().unwrap();
                    asked.finish(OperationOutcome::Ok((version > 0).then_some((found, version))));
                    let asked = recorder.cas(client, "a", version, value);
                    let mut there = register.lock().unwrap();
                    let made = match there.1 == version {
                        true => Ok(Acknowledgement { value, version: version + 1 }),
                        false => Err(Conflict(there.1)),
                    };
                    if made.is_ok() {
                        *there = (value, version + 1);
                    }
                    drop(there);
                    asked.finish(OperationOutcome::Ok(made));
                }
            });
        }
    });
    let history = recorder.history();
    assert_eq!(history.len(), 1_600);
    assert_eq!(check(&history, SearchLimit::default()), LinearizabilityVerdict::Linearizable);
}

#[test]
fn dropped_write_is_indeterminate() {
    let recorder = HistoryRecorder::default();
    drop(recorder.write(1, "a", 7));
    recorder.write(1, "a", 8).finish(OperationOutcome::Failed);
    recorder.read(2, "a").finish(OperationOutcome::Ok(Some((7, 1))));
    let history = recorder.history();
    assert_eq!(history[0].operation, RegisterOperation::Write { value: 7, made: OperationOutcome::Unknown });
    assert_eq!(history[1].operation, RegisterOperation::Write { value: 8, made: OperationOutcome::Failed });
    assert!(history.windows(2).all(|pair| pair[0].returned <= pair[1].invoked));
    assert_eq!(check(&history, SearchLimit::default()), LinearizabilityVerdict::Linearizable);
}
