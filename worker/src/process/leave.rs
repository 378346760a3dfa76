//! Leaving the cluster: the node is drained, then forgotten, then everything that it still runs is stopped, and last
//! what made it a member is removed here. A machine whose cluster is gone for good can be told to do the latter two
//! alone: it would stay the node of a cluster that nobody can ask.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use warren_network::NamespaceLock;
use warren_process::{Exit, Failure, Machine, MetricsArgs};
use warren_proto::v1;
use warren_proto::v1::membership_client::MembershipClient;
use warren_security::{LiveCertificate, client_config};

use super::run::{Ended, Occasion};
use super::{Flags, LeaveArgs, Shown, Told, failed, join, no_worker, run};
use crate::session::{Connected, Dial, Dialer, Removal, RemovalNote};
use crate::worker::identity;

const WHAT: &str = "this machine did not leave";
const REASON: &str = "it left the cluster";
/// What happened to the cluster's side of it, for who reads why it failed here.
const LEFT: &str = "this machine left its cluster, and not everything that it ran is gone";
/// Between two looks at how many tasks are left.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

pub(super) async fn leave(args: LeaveArgs) -> Result<(), Failure> {
    let LeaveArgs { place, force, offline, deadline } = args;
    let data_dir = place.data_dir.clone();
    let told =
        Told::load(place, MetricsArgs::default(), Flags::default())?.ok_or_else(|| no_worker(&data_dir))?;
    Machine::look()?.must_be_root("run it as root")?;
    let (credentials, roots) = told.member()?;
    let note = told.note(&credentials)?;
    // A removed node has left, and its managers may be gone.
    if offline {
        must_not_run()?;
    } else if note.load().is_none() {
        let tls = client_config(&roots, Some(LiveCertificate::new(&credentials)));
        let tls = tls.map_err(|error| failed(WHAT, &error, ""))?;
        let (_, node) = identity(credentials.identity()).map_err(|error| failed(WHAT, &error, ""))?;
        let dial: Dial = Arc::new(Dialer::new(node, told.managers(), tls));
        be_forgotten(&dial, force, deadline).await?;
    }
    let removal = clear(&told, &note, deadline).await?;
    let undone = |error: &dyn std::error::Error| failed(WHAT, error, "remove the data directory by hand");
    told.membership().remove().map_err(|error| undone(&error))?;
    join::forget_earlier(&told).map_err(|error| undone(&error))?;
    let mut text = format!("this machine left its cluster: {}\n", run::cleared(&removal));
    if offline {
        text += "its cluster was not told: if there is one, it keeps the node until `warren node rm`\n";
    }
    // Whoever closed the output knows by the exit code.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
    Ok(())
}

/// Nobody would tell a worker that runs here to stop what it runs.
fn must_not_run() -> Result<(), Failure> {
    let taken = NamespaceLock::take().map(drop);
    taken.map_err(|error| {
        Failure::new(Exit::Conflict, WHAT, error, "then repeat `warren worker leave --offline`")
    })
}

/// Asks until the cluster has forgotten this node.
async fn be_forgotten(dial: &Dial, force: bool, deadline: Duration) -> Result<(), Failure> {
    let until = Instant::now() + deadline;
    let mut said = 0;
    loop {
        let left = ask(dial, force).await?;
        if left == 0 {
            return Ok(());
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
}

/// Asks one manager after the other, until one answers.
async fn ask(dial: &Dial, force: bool) -> Result<u32, Failure> {
    let mut asked = 0;
    loop {
        asked += 1;
        let failure = match dial.dial().await {
            Ok(connected) => match ask_one(connected, force).await {
                Ok(left) => return Ok(left),
                Err(failure) => failure,
            },
            Err(error) => {
                let hint = "check that a manager runs, then try again; if its cluster is gone for good, \
                            `warren worker leave --offline` clears this machine";
                Failure::new(Exit::Unreachable, WHAT, error, hint)
            }
        };
        if asked >= dial.known() || failure.exit != Exit::Unreachable {
            return Err(failure);
        }
    }
}

async fn ask_one(connected: Connected, force: bool) -> Result<u32, Failure> {
    let mut client = MembershipClient::new(connected.channel);
    let answer = timeout(ANSWER_DEADLINE, client.leave(v1::LeaveRequest { force })).await;
    let answer = answer.map_err(|_| {
        let why = format!("no answer within {ANSWER_DEADLINE:?}");
        Failure::new(Exit::Unreachable, WHAT, why, "try again in a moment")
    })?;
    let answer = answer.map_err(|status| Failure { what: WHAT.to_owned(), ..join::refused(&status) })?;
    Ok(answer.into_inner().tasks)
}

/// Has everything stopped that this node runs: by the worker that runs here, which hears of the removal as well, or
/// else by itself.
async fn clear(told: &Told, note: &RemovalNote, deadline: Duration) -> Result<Removal, Failure> {
    let until = Instant::now() + deadline;
    if note.load().is_none() {
        // Whatever happens to this process, the next `worker run` or `worker leave` goes on from here.
        let removal = Removal { reason: REASON.to_owned(), containers: 0, cleared: false };
        let hint = "free some disk space, then repeat `warren worker leave`";
        note.store(&removal).map_err(|error| failed(LEFT, &error, hint))?;
    }
    let mut waits = false;
    // Dropped at once: it is only asked whether another process holds it.
    while let Err(error) = NamespaceLock::take() {
        if Instant::now() >= until {
            let why = format!("the worker that runs here did not end within {deadline:?}: {error}");
            return Err(Failure::new(
                Exit::TimedOut,
                LEFT,
                why,
                "stop it, then repeat `warren worker leave`",
            ));
        }
        if !waits {
            tracing::info!("waiting until the worker that runs here has stopped its containers");
            waits = true;
        }
        sleep(LOOK_EVERY).await;
    }
    match run::run_joined(told, Occasion::Run, &Shown::to_nobody()).await? {
        Ended::Removed { removal, .. } => Ok(removal),
        Ended::Told | Ended::Unknown => {
            let hint = "repeat `warren worker leave`";
            Err(Failure::new(Exit::Failed, LEFT, "it was interrupted", hint))
        }
    }
}
