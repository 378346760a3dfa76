//! `warren cluster ca`: shows the certificate authority, and replaces it. The managers do that by themselves: the
//! command begins it and watches.

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};
use warren_client::Client;
use warren_proto::v1;

use crate::args::{CaCommand, GlobalArgs};
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind, from_client};
use crate::output;
use crate::progress::ProgressOutput;
use crate::view::ca::{CaStatusView, progress_lines, progress_summary};
use crate::view::{duration, joined_names};
use crate::wait::is_transient;

const POLL_INTERVAL: Duration = Duration::from_millis(500);

pub async fn run(global: &GlobalArgs, command: CaCommand) -> Result<(), CommandError> {
    match command {
        CaCommand::Status => status(global).await,
        CaCommand::Rotate { detach } => rotate(global, detach).await,
    }
}

async fn status(global: &GlobalArgs) -> Result<(), CommandError> {
    let what = "the certificate authority was not shown";
    let client = connect(global, what).await?;
    let status = client.cluster().ca().await.map_err(|error| from_client(what, error))?;
    output::print_document(global.output, &CaStatusView::new(status))
}

async fn rotate(global: &GlobalArgs, detach: bool) -> Result<(), CommandError> {
    let what = "the certificate authority was not replaced";
    let client = connect(global, what).await?;
    let known = client.cluster().ca().await.map_err(|error| from_client(what, error))?;
    let begun = match known.phase() {
        // It goes on by itself.
        v1::CaPhase::Managers | v1::CaPhase::Nodes => known,
        v1::CaPhase::Unspecified | v1::CaPhase::Complete => {
            let begun = client.cluster().rotate_ca(&known.ca_digest).await;
            begun.map_err(|error| from_client(what, error))?
        }
    };
    if detach {
        eprintln!("the certificate authority is being replaced; see `warren cluster ca status`");
    } else {
        wait_complete(&client, &begun, global.timeout).await?;
    }
    output::print(&format!("{}\n", begun.ca_digest))
}

async fn wait_complete(client: &Client, begun: &v1::CaStatus, timeout: Duration) -> Result<(), CommandError> {
    let what = "the certificate authority is not replaced yet";
    let deadline = Instant::now() + timeout;
    let (mut progress, mut seen) = (ProgressOutput::new(), begun.clone());
    while Instant::now() < deadline {
        // Another replacement begins only after this one.
        if seen.ca_digest != begun.ca_digest || seen.phase() == v1::CaPhase::Complete {
            progress.end(&progress_summary(&seen));
            print_remaining(&seen);
            return Ok(());
        }
        progress.show(&progress_summary(&seen), &progress_lines(&seen));
        sleep_until(deadline.min(Instant::now() + POLL_INTERVAL)).await;
        match timeout_at(deadline, client.cluster().ca()).await {
            Err(_) => break,
            Ok(Ok(newer)) => seen = newer,
            Ok(Err(error)) if is_transient(&error) => {}
            Ok(Err(error)) => return Err(from_client(what, error)),
        }
    }
    let lines = progress_lines(&seen).into_iter().map(|(name, line)| format!("{name}: {line}"));
    let why: Vec<String> = [progress_summary(&seen)].into_iter().chain(lines).collect();
    let what = format!("{what} after {}", duration(timeout));
    let hint = "the cluster continues; give the command again to wait, or see `warren cluster ca status`";
    Err(CommandError::new(ExitKind::TimedOut, what, why.join("\n"), hint))
}

/// Who trusts the earlier authority for now.
fn print_remaining(status: &v1::CaStatus) {
    let names = |progress: &Option<v1::CaProgress>| {
        let names = progress.as_ref().map(|progress| progress.missing_names.clone()).unwrap_or_default();
        (!names.is_empty()).then(|| joined_names(&names, false))
    };
    if let Some(nodes) = names(&status.nodes) {
        eprintln!("not ready: {nodes}; they follow when they return");
    }
    if let Some(users) = names(&status.users) {
        eprintln!("users that have not renewed: {users}; each does so with the next command");
    }
}
