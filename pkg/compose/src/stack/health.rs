//! Health checks.

use std::time::Duration;

use warren_types::{HealthCheck, Probe};

use super::fields::Fields;

/// The defaults of the HEALTHCHECK of images, which the Compose format takes over.
const TIMEOUT: Duration = Duration::from_secs(30);
const START_INTERVAL: Duration = Duration::from_secs(5);

/// The health check of a service.
pub(super) fn health(service: &Fields<'_>) -> Option<HealthCheck> {
    let check = service.sub("healthcheck")?;
    if check.flag("disable") == Some(true) {
        return None;
    }
    let Some(test) = check.texts("test") else {
        check.fail("has no `test`: Warren does not read the health check of the image; give the command");
        return None;
    };
    let command = match test.split_first().map(|(kind, words)| (kind.as_str(), words)) {
        Some(("NONE", [])) => return None,
        Some(("CMD", words)) if !words.is_empty() => words.to_vec(),
        Some(("CMD-SHELL", [command])) => vec!["/bin/sh".to_owned(), "-c".to_owned(), command.clone()],
        _ => {
            check.fail_at("test", "begins with CMD and a command, CMD-SHELL and one text, or NONE");
            return None;
        }
    };
    let mut result = HealthCheck::new(Probe::Exec { command });
    result.timeout = check.duration("timeout").unwrap_or(TIMEOUT);
    result.start_interval = check.duration("start_interval").unwrap_or(START_INTERVAL);
    result.interval = check.duration("interval").unwrap_or(result.interval);
    result.start_period = check.duration("start_period").unwrap_or(result.start_period);
    // Docker takes 0 as the default as well.
    result.retries = check.number("retries").filter(|retries| *retries != 0).unwrap_or(result.retries);
    Some(result)
}
