//! Setup of this node's container processes, for health check programs that run next to them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warren_container_programs::plan::{CapabilityMasks, ExecPlan};
use warren_health::ExecPlanSource;
use warren_runtime::{ContainerId, ProcessSetup, Runtime};

/// Cache size. Task ids are never reused, and the setup of a task never changes.
const MAX_PLANS: usize = 2048;

/// Asks the runtime once per container.
pub(crate) struct ExecPlanCache {
    runtime: Arc<dyn Runtime>,
    plans: Mutex<BTreeMap<String, Arc<ExecPlan>>>,
}

impl ExecPlanCache {
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        Self { runtime, plans: Mutex::default() }
    }

    fn plans(&self) -> MutexGuard<'_, BTreeMap<String, Arc<ExecPlan>>> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[tonic::async_trait]
impl ExecPlanSource for ExecPlanCache {
    async fn exec_plan(&self, container: &str) -> Result<ExecPlan, String> {
        let known = self.plans().get(container).cloned();
        if let Some(known) = known {
            return Ok((*known).clone());
        }
        let id = ContainerId::parse(container).map_err(|error| error.to_string())?;
        let plan = plan(self.runtime.process_setup(&id).await.map_err(|error| error.to_string())?);
        let mut known = self.plans();
        if known.len() >= MAX_PLANS {
            known.clear();
        }
        known.insert(container.to_owned(), Arc::new(plan.clone()));
        Ok(plan)
    }
}

/// The plan without process, program and timeout.
fn plan(setup: ProcessSetup) -> ExecPlan {
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
    ExecPlan {
        pid: 0,
        cgroup,
        timeout_ms: 0,
        arguments: Vec::new(),
        environment: environment.into_iter().map(String::into_bytes).collect(),
        directory: directory.into_bytes(),
        uid,
        gid,
        groups,
        capabilities: CapabilityMasks { bounding, effective, permitted, inheritable, ambient },
        no_new_privileges,
        rlimits: limits,
        seccomp_filters: filters,
    }
}

#[cfg(test)]
mod tests {
    use warren_runtime::fake::FakeRuntime;

    use super::*;

    #[tokio::test]
    async fn missing_container_has_no_plan() {
        let setups = ExecPlanCache::new(Arc::new(FakeRuntime::new()));
        assert!(setups.exec_plan("a-1").await.unwrap_err().contains("a-1"));
        assert!(setups.exec_plan("../x").await.is_err());
    }
}
