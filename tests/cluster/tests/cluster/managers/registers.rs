//! Clients write and read while leaders are stopped: the history is linearizable.

use std::time::{Duration, Instant};

use warren_client::{ClientIdentity, PrivateKeyPem};
use warren_test_history::workload::{AdminAccess, RegisterWorkload, RegisterWorkloadConfig};
use warren_test_history::{LinearizabilityVerdict, SearchLimit, check};
use warren_testkit::wait::eventually_async;

use super::group::ManagerGroup;
use crate::fixture::WAIT_DEADLINE;

/// The time until writes are acknowledged again after the leader stopped.
const SOON: Duration = Duration::from_secs(30);
/// Writes that a test waits for.
const WRITES: u64 = 100;

impl ManagerGroup {
    pub fn identity(&self) -> ClientIdentity {
        ClientIdentity {
            ca: self.roots.pem().to_owned(),
            certificate: self.admin.certificate_pem().to_owned(),
            key: PrivateKeyPem(self.admin.key().pem().to_owned()),
        }
    }

    /// That many clients of all managers. They call as the administrator.
    pub fn start_registers(&self, clients: u32, seed: u64) -> RegisterWorkload {
        let plan = RegisterWorkloadConfig {
            managers: self.addresses(),
            registers: 3,
            clients,
            pause: Duration::from_millis(5),
            netns: None,
            seed,
        };
        let access = AdminAccess::new(&self.identity());
        tokio::task::block_in_place(|| RegisterWorkload::start(access, plan))
    }
}

/// Waits until 100 more writes are acknowledged.
pub async fn more_writes(registers: &RegisterWorkload) {
    let expected = registers.acknowledged() + WRITES;
    eventually_async(4 * WAIT_DEADLINE, "more writes", || async {
        let found = registers.acknowledged();
        if found >= expected { Ok(()) } else { Err(format!("{found} of {expected}")) }
    })
    .await;
}

/// Ends the clients, whose history is linearizable, and returns the number of their operations.
pub fn finish(registers: RegisterWorkload) -> usize {
    let history = tokio::task::block_in_place(|| registers.finish());
    let verdict = check(&history, SearchLimit::default());
    assert_eq!(verdict, LinearizabilityVerdict::Linearizable, "{verdict}");
    history.len()
}

/// Waits until a write that was sent after `moment` is acknowledged.
fn wait_for_write(registers: &RegisterWorkload, moment: Instant) -> Duration {
    tokio::task::block_in_place(|| registers.wait_for_write(moment, SOON))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn history_is_linearizable_across_leader_kills() {
    let mut group = ManagerGroup::of_three().await;
    let registers = group.start_registers(6, 6);
    for round in 0..4 {
        let leader = group.leader().await;
        let moment = Instant::now();
        if round % 2 == 0 {
            group.hosts[leader].stop().await;
        } else {
            group.hosts[leader].drop_manager().await;
        }
        let gap = wait_for_write(&registers, moment);
        println!("round {round}: writes went on after {gap:?}");
        group.hosts[leader].start(false).await.unwrap();
        more_writes(&registers).await;
    }
    let operations = finish(registers);
    assert!(operations as u64 > 6 * WRITES, "{operations} operations");
}
