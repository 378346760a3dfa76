//! Records the operations of clients, from many tasks and threads at once.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::record::{
    Acknowledgement, Conflict, OperationOutcome, OperationRecord, RegisterOperation, RegisterValue,
    RegisterVersion,
};

/// Cheap to clone; all clones record the same history.
#[derive(Clone)]
pub struct HistoryRecorder {
    began: Instant,
    records: Arc<Mutex<Vec<OperationRecord>>>,
}

/// An operation that was called and is not answered yet. When it is dropped, its outcome is unknown, as for a
/// client that lost its connection.
#[must_use = "an operation that is dropped has an unknown outcome"]
pub struct PendingOperation<T> {
    recorder: HistoryRecorder,
    client: u32,
    key: String,
    invoked: u64,
    /// `None` once it has ended.
    describe: Option<Describe<T>>,
}

type Describe<T> = Box<dyn FnOnce(OperationOutcome<T>) -> RegisterOperation + Send>;

impl Default for HistoryRecorder {
    fn default() -> Self {
        Self { began: Instant::now(), records: Arc::default() }
    }
}

impl HistoryRecorder {
    /// A read begins.
    pub fn read(&self, client: u32, key: &str) -> PendingOperation<Option<(RegisterValue, RegisterVersion)>> {
        self.invoked(client, key, |found| RegisterOperation::Read { found })
    }

    /// A write begins.
    pub fn write(&self, client: u32, key: &str, value: RegisterValue) -> PendingOperation<Acknowledgement> {
        self.invoked(client, key, move |made| RegisterOperation::Write { value, made })
    }

    /// A compare-and-set begins.
    pub fn cas(
        &self,
        client: u32,
        key: &str,
        expected: RegisterVersion,
        value: RegisterValue,
    ) -> PendingOperation<Result<Acknowledgement, Conflict>> {
        self.invoked(client, key, move |made| RegisterOperation::Cas { expected, value, made })
    }

    /// All operations that have ended, in the order of their calls.
    pub fn history(&self) -> Vec<OperationRecord> {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner).clone();
        records.sort_by_key(|record| (record.invoked, record.returned));
        records
    }

    fn invoked<T>(
        &self,
        client: u32,
        key: &str,
        describe: impl FnOnce(OperationOutcome<T>) -> RegisterOperation + Send + 'static,
    ) -> PendingOperation<T> {
        let (recorder, key, describe) =
            (self.clone(), key.to_owned(), Some(Box::new(describe) as Describe<T>));
        PendingOperation { recorder, client, key, invoked: self.now(), describe }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).expect("the time fits: no test runs for 584 years")
    }
}

impl<T> PendingOperation<T> {
    /// It has ended with this outcome.
    pub fn finish(mut self, outcome: OperationOutcome<T>) {
        self.end(outcome);
    }

    fn end(&mut self, outcome: OperationOutcome<T>) {
        if let Some(describe) = self.describe.take() {
            let (key, operation) = (std::mem::take(&mut self.key), describe(outcome));
            let (client, invoked, returned) = (self.client, self.invoked, self.recorder.now());
            let record = OperationRecord { client, key, operation, invoked, returned };
            self.recorder.records.lock().unwrap_or_else(PoisonError::into_inner).push(record);
        }
    }
}

impl<T> Drop for PendingOperation<T> {
    fn drop(&mut self) {
        self.end(OperationOutcome::Unknown);
    }
}
