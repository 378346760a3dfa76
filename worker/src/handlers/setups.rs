//! How the processes of this node's containers run, for programs of checks that are run beside them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warren_health::Setups;
use warren_logger::plan::{Capabilities, Plan};
use warren_runtime::{ContainerId, ProcessSetup, Runtime};

/// How many are kept. A task's id is never used again, and what it runs as never changes.
const KEPT: usize = 2048;

/// Asks the runtime once for each container.
pub(crate) struct RuntimeSetups {
    runtime: Arc<dyn Runtime>,
    known: Mutex<BTreeMap<String, Arc<Plan>>>,
}

impl RuntimeSetups {
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        Self { runtime, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Plan>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[tonic::async_trait]
impl Setups for RuntimeSetups {
    async fn setup(&self, container: &str) -> Result<Plan, String> {
        let known = self.known().get(container).cloned();
        if let Some(known) = known {
            return Ok((*known).clone());
        }
        let id = ContainerId::parse(container).map_err(|error| error.to_string())?;
        let plan = plan(self.runtime.process_setup(&id).await.map_err(|error| error.to_string())?);
        let mut known = self.known();
        if known.len() >= KEPT {
            known.clear();
        }
        known.insert(container.to_owned(), Arc::new(plan.clone()));
        Ok(plan)
    }
}

/// All of a plan but the process, the program and the time.
fn plan(setup: ProcessSetup) -> Plan {
    let ProcessSetup {
        environment,
        directory,
        uid,
        gid,
        groups,
        capabilities,
        no_new_privileges,
        limits,
        filters,
        cgroup,
    } = setup;
    let [bounding, effective, permitted, inheritable, ambient] = capabilities;
    Plan {
        pid: 0,
        cgroup,
        timeout_ms: 0,
        arguments: Vec::new(),
        environment: environment.into_iter().map(String::into_bytes).collect(),
        directory: directory.into_bytes(),
        uid,
        gid,
        groups,
        capabilities: Capabilities { bounding, effective, permitted, inheritable, ambient },
        no_new_privileges,
        limits,
        filters,
    }
}

#[cfg(test)]
mod tests {
    use warren_runtime::fake::Fake;

    use super::*;

    #[tokio::test]
    async fn a_container_that_is_not_there_has_none() {
        let setups = RuntimeSetups::new(Arc::new(Fake::new()));
        assert!(setups.setup("a-1").await.unwrap_err().contains("a-1"));
        assert!(setups.setup("../x").await.is_err());
    }
}
