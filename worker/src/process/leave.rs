//! Leaving the cluster: the node is drained, then forgotten, then what made it a member is removed here.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use warren_process::{Exit, Failure};
use warren_proto::v1;
use warren_proto::v1::membership_client::MembershipClient;
use warren_security::{LiveCertificate, Membership, client_config};

use super::{Flags, LeaveArgs, Told, failed, join, no_worker};
use crate::session::Dialer;

const WHAT: &str = "this machine did not leave";
/// Between two looks at how many tasks are left.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

pub(super) async fn leave(args: LeaveArgs) -> Result<(), Failure> {
    let LeaveArgs { place, force, deadline } = args;
    let data_dir = place.data_dir.clone();
    let told = Told::load(place, Flags::default())?.ok_or_else(|| no_worker(&data_dir))?;
    let store = told.membership();
    let member = store.load().map_err(|error| failed(WHAT, &error, "check the data directory"))?;
    let Membership::Member { credentials, roots } = member else {
        return Err(no_worker(&data_dir));
    };
    let tls = client_config(&roots, Some(LiveCertificate::new(&credentials)));
    let tls = tls.map_err(|error| failed(WHAT, &error, ""))?;
    let dial = Dialer::new(told.joined.managers.clone(), tls).into_dial();
    let until = Instant::now() + deadline;
    let mut said = 0;
    loop {
        let left = ask(&dial, force).await?;
        if left == 0 {
            break;
        }
        if Instant::now() >= until {
            let why = format!("{left} of its tasks could not be replaced elsewhere within {deadline:?}");
            let hint = "see `warren node ps`, make room elsewhere, or give them up with --force; \
                        it stays drained until `warren node update NODE --availability active`";
            return Err(Failure::new(Exit::TimedOut, WHAT, why, hint));
        }
        if left != said {
            tracing::info!(tasks = left, "waiting until the tasks of this node run elsewhere");
            said = left;
        }
        sleep(LOOK_EVERY).await;
    }
    store.remove().map_err(|error| failed(WHAT, &error, "remove the data directory by hand"))?;
    let text = "this machine left its cluster; a worker that still runs here ends by itself\n";
    // Whoever closed the output knows by the exit code.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
    Ok(())
}

async fn ask(dial: &crate::session::Dial, force: bool) -> Result<u32, Failure> {
    let connected = dial().await.map_err(|error| {
        Failure::new(Exit::Unreachable, WHAT, error, "check that a manager runs, then try again")
    })?;
    let mut client = MembershipClient::new(connected.channel);
    let answer = timeout(ANSWER_DEADLINE, client.leave(v1::LeaveRequest { force })).await;
    let answer = answer.map_err(|_| {
        let why = format!("no answer within {ANSWER_DEADLINE:?}");
        Failure::new(Exit::Unreachable, WHAT, why, "try again in a moment")
    })?;
    let answer = answer.map_err(|status| Failure { what: WHAT.to_owned(), ..join::refused(&status) })?;
    Ok(answer.into_inner().tasks)
}
