//! A manager that hands out what a test says.

use std::sync::{Arc, Mutex};

use super::{Courier, Delivered, FetchError, Need};

/// Gives the same answer to whatever is asked: nothing, until it is told. Clones are the same.
#[derive(Clone, Default)]
pub struct FakeCourier {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    answer: Option<Result<Vec<Delivered>, FetchError>>,
    asked: Vec<Need>,
}

impl FakeCourier {
    /// From now on.
    pub fn answers(&self, answer: Result<Vec<Delivered>, FetchError>) {
        self.state.lock().unwrap().answer = Some(answer);
    }

    /// Everything that was asked for.
    pub fn asked(&self) -> Vec<Need> {
        self.state.lock().unwrap().asked.clone()
    }
}

#[tonic::async_trait]
impl Courier for FakeCourier {
    async fn fetch(&self, need: Need) -> Result<Vec<Delivered>, FetchError> {
        let mut state = self.state.lock().unwrap();
        state.asked.push(need);
        state.answer.clone().unwrap_or(Ok(Vec::new()))
    }
}
