//! `warren cluster audit`: prints audit lines until the last one, or for ever.

use std::io::{self, Write};

use warren_client::AuditMessage;
use warren_proto::v1;

use super::events::print_document;
use crate::args::{AuditArgs, GlobalArgs, OutputFormat};
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind, from_client};
use crate::view::audit::AuditLineView;

pub async fn run(global: &GlobalArgs, args: AuditArgs) -> Result<(), CommandError> {
    let what = "audit lines were not read";
    let AuditArgs { follow, since, until, user, method } = args;
    let (since, until) = (since.map(|at| at.0), until.map(|at| at.0));
    let (user, method) = (user.unwrap_or_default(), method.unwrap_or_default());
    let request = v1::AuditRequest { follow, since, until, user, method, after: 0 };
    let client = connect(global, what).await?;
    let mut lines = client.cluster().audit(request).await.map_err(|error| from_client(what, error))?;
    let mut stdout = io::stdout().lock();
    while let Some(message) = lines.next().await.map_err(|error| from_client(what, error))? {
        let line = match message {
            AuditMessage::Warning(warning) => {
                writeln!(io::stderr(), "warning: {}: {}", warning.manager_name, warning.message).ok();
                continue;
            }
            AuditMessage::Line(line) => AuditLineView::new(*line),
        };
        let text = |format: OutputFormat| line.line(format == OutputFormat::Wide);
        match print_document(&mut stdout, global.output, &line, text) {
            // The reader closed the pipe (`| head`).
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => {
                return Err(CommandError::new(ExitKind::Failed, "audit lines were not printed", error, ""));
            }
            Ok(()) => {}
        }
    }
    Ok(())
}
