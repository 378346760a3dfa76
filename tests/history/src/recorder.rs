//! Records what clients do, from many tasks and threads at once.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::record::{Acknowledgement, Conflict, Operation, Outcome, Record, Value, Version};

/// Cheap to clone; all clones record the same history.
#[derive(Clone)]
pub struct Recorder {
    began: Instant,
    records: Arc<Mutex<Vec<Record>>>,
}

/// An operation that was called and is not answered yet. When it is dropped, its outcome is unknown: that is what
/// becomes of a client that was cut off.
#[must_use = "an operation that is dropped has an unknown outcome"]
pub struct Invoked<T> {
    recorder: Recorder,
    client: u32,
    key: String,
    invoked: u64,
    /// `None` once it has ended.
    describe: Option<Describe<T>>,
}

type Describe<T> = Box<dyn FnOnce(Outcome<T>) -> Operation + Send>;

impl Default for Recorder {
    fn default() -> Self {
        Self { began: Instant::now(), records: Arc::default() }
    }
}

impl Recorder {
    /// A read begins.
    pub fn read(&self, client: u32, key: &str) -> Invoked<Option<(Value, Version)>> {
        self.invoked(client, key, |found| Operation::Read { found })
    }

    /// A write begins.
    pub fn write(&self, client: u32, key: &str, value: Value) -> Invoked<Acknowledgement> {
        self.invoked(client, key, move |made| Operation::Write { value, made })
    }

    /// A compare-and-set begins.
    pub fn cas(
        &self,
        client: u32,
        key: &str,
        expected: Version,
        value: Value,
    ) -> Invoked<Result<Acknowledgement, Conflict>> {
        self.invoked(client, key, move |made| Operation::Cas { expected, value, made })
    }

    /// Everything that has ended so far, in the order of its calls.
    pub fn history(&self) -> Vec<Record> {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner).clone();
        records.sort_by_key(|record| (record.invoked, record.returned));
        records
    }

    fn invoked<T>(
        &self,
        client: u32,
        key: &str,
        describe: impl FnOnce(Outcome<T>) -> Operation + Send + 'static,
    ) -> Invoked<T> {
        let (recorder, key, describe) =
            (self.clone(), key.to_owned(), Some(Box::new(describe) as Describe<T>));
        Invoked { recorder, client, key, invoked: self.now(), describe }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).expect("no test runs for 584 years")
    }
}

impl<T> Invoked<T> {
    /// It has ended, like this.
    pub fn ended(mut self, outcome: Outcome<T>) {
        self.end(outcome);
    }

    fn end(&mut self, outcome: Outcome<T>) {
        if let Some(describe) = self.describe.take() {
            let (key, operation) = (std::mem::take(&mut self.key), describe(outcome));
            let (client, invoked, returned) = (self.client, self.invoked, self.recorder.now());
            let record = Record { client, key, operation, invoked, returned };
            self.recorder.records.lock().unwrap_or_else(PoisonError::into_inner).push(record);
        }
    }
}

impl<T> Drop for Invoked<T> {
    fn drop(&mut self) {
        self.end(Outcome::Unknown);
    }
}
