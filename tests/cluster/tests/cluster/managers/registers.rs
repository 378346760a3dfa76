//! Clients that write and read while leaders end: every answer was possible.

use std::time::{Duration, Instant};

use warren_client::{Identity, PrivateKey};
use warren_test_history::{Limit, Verdict, check};
use warren_test_registers::{Access, Plan, Registers};
use warren_testkit::wait::eventually_async;

use super::group::Group;
use crate::world::PATIENCE;

/// How soon writes go on without the leader that ended.
const SOON: Duration = Duration::from_secs(10);
/// Writes between two ends of leaders.
const WRITES: u64 = 100;

impl Group {
    pub fn identity(&self) -> Identity {
        Identity {
            ca: self.roots.pem().to_owned(),
            certificate: self.admin.certificate_pem().to_owned(),
            key: PrivateKey(self.admin.key().pem().to_owned()),
        }
    }
}

/// Waits until a write was acknowledged that was sent after `moment`.
fn goes_on(registers: &Registers, moment: Instant) -> Duration {
    tokio::task::block_in_place(|| registers.wait_for_write(moment, SOON))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn answers_stay_true_while_leaders_end() {
    let mut group = Group::of_three().await;
    let plan = Plan {
        managers: group.hosts.iter().map(|host| host.address()).collect(),
        registers: 3,
        clients: 6,
        pause: Duration::from_millis(5),
        netns: None,
        seed: 6,
    };
    let access = Access::new(&group.identity());
    let registers = tokio::task::block_in_place(|| Registers::start(access, plan));
    for round in 0..4 {
        let leader = group.leader().await;
        let moment = Instant::now();
        if round % 2 == 0 {
            group.hosts[leader].stop().await;
        } else {
            group.hosts[leader].let_go().await;
        }
        let gap = goes_on(&registers, moment);
        println!("round {round}: writes went on after {gap:?}");
        group.hosts[leader].start(false).await.unwrap();
        let wanted = (round + 1) * WRITES;
        eventually_async(PATIENCE, "more writes", || async {
            let found = registers.acknowledged();
            if found >= wanted { Ok(()) } else { Err(format!("{found} of {wanted}")) }
        })
        .await;
    }
    let history = tokio::task::block_in_place(|| registers.finish());
    let verdict = check(&history, Limit::default());
    assert_eq!(verdict, Verdict::Linearizable, "{verdict}");
    assert!(history.len() as u64 > 6 * WRITES, "{} operations", history.len());
}
