//! A fake source of secret objects.

use std::sync::{Arc, Mutex};

use super::{FetchPurpose, FetchedObject, SecretFetchError, SecretFetcher};

/// Gives the same answer to every request; empty by default. Clones share it.
#[derive(Clone, Default)]
pub struct FakeSecretFetcher {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    answer: Option<Result<Vec<FetchedObject>, SecretFetchError>>,
    requests: Vec<FetchPurpose>,
}

impl FakeSecretFetcher {
    /// Sets the answer of later requests.
    pub fn set_answer(&self, answer: Result<Vec<FetchedObject>, SecretFetchError>) {
        self.state.lock().unwrap().answer = Some(answer);
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<FetchPurpose> {
        self.state.lock().unwrap().requests.clone()
    }
}

#[tonic::async_trait]
impl SecretFetcher for FakeSecretFetcher {
    async fn fetch(&self, need: FetchPurpose) -> Result<Vec<FetchedObject>, SecretFetchError> {
        let mut state = self.state.lock().unwrap();
        state.requests.push(need);
        state.answer.clone().unwrap_or(Ok(Vec::new()))
    }
}
