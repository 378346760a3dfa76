//! What a worker's reason is about: it begins with, or contains after `; `, the step that failed.

/// A step of a worker: how its reasons begin, the code of its failure, what cannot be done, and what to do.
pub struct WorkerStep {
    /// As the worker writes it.
    pub verb: &'static str,
    /// The code of its failure.
    pub code: &'static str,
    /// Follows the name of the task.
    pub sentence: &'static str,
    /// What a person can do.
    pub action: &'static str,
}

const fn step(
    verb: &'static str,
    code: &'static str,
    sentence: &'static str,
    action: &'static str,
) -> WorkerStep {
    WorkerStep { verb, code, sentence, action }
}

/// What to do about failures of the node itself.
const NODE_ACTION: &str = "see `warren why node/NODE` and the log of the node's agent";

/// The steps whose failures have an answer of their own.
pub const WORKER_STEPS: [WorkerStep; 11] = [
    step(
        "pulling image",
        "image-pull-failed",
        "cannot get its image",
        "check name and tag of the image, and that the node reaches the registry; for a private one `warren registry \
         login HOST`; without a registry `warren image import` or `warren image copy`",
    ),
    step("creating network", "network-failed", "cannot get its network", NODE_ACTION),
    step("writing task files", "files-failed", "cannot get its files", NODE_ACTION),
    step(
        "creating volumes",
        "volume-failed",
        "cannot get its volumes",
        "correct the volume or its mount: `warren volume inspect NAME`",
    ),
    step(
        "fetching secrets and configs",
        "secrets-failed",
        "cannot get its secrets and configs",
        "check that they exist with `warren secret ls` and `warren config ls`",
    ),
    step(
        "reserving published ports",
        "port-in-use",
        "cannot reserve its published ports",
        "stop the program that has the port on that node, or publish another one with `warren service update \
         SERVICE --publish-add`",
    ),
    step("publishing ports", "ports-failed", "cannot be reached at its published ports", NODE_ACTION),
    step(
        "creating container",
        "container-failed",
        "cannot get its container",
        "correct the field that is named, with `warren service update SERVICE`",
    ),
    step(
        "starting process",
        "start-failed",
        "cannot start its process",
        "check command and arguments of the service against the image: `warren service inspect SERVICE`",
    ),
    step("inspecting container", "runtime-failed", "cannot be inspected", NODE_ACTION),
    step("killing container", "kill-failed", "cannot be killed", NODE_ACTION),
];

/// The step that failed, by the worker's reason. Progress of a pull is no failure, unless it is retried.
pub(super) fn failed_step(reason: &str) -> Option<&'static WorkerStep> {
    reason.split("; ").find_map(|part| {
        let (verb, rest) = part.split_once(": ")?;
        let step = WORKER_STEPS.iter().find(|step| step.verb == verb)?;
        let is_retried = reason.contains("; ");
        (!is_pull_progress(verb, rest) || is_retried).then_some(step)
    })
}

/// Whether the worker pulls the image, without a failure so far.
pub(super) fn is_pulling(reason: &str) -> bool {
    let is_pull = reason.starts_with("pulling image") || reason.starts_with("unpacking image");
    is_pull && failed_step(reason).is_none()
}

/// `pulling image: 1 of 2 layers, 3 of 9 MiB`
fn is_pull_progress(verb: &str, rest: &str) -> bool {
    let counts = || rest.split_once(" layers").is_some_and(|(numbers, _)| numbers.contains(" of "));
    verb == "pulling image" && (rest.starts_with("contacting the registry") || counts())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_from_progress() {
        let check = |reason: &str, code: Option<&str>, pulling: bool| {
            assert_eq!(failed_step(reason).map(|step| step.code), code, "{reason}");
            assert_eq!(is_pulling(reason), pulling, "{reason}");
        };
        check("pulling image: contacting the registry", None, true);
        check("pulling image: 1 of 2 layers, 3 of 9 MiB", None, true);
        check("unpacking image: 1 of 2 layers", None, true);
        let pull = Some("image-pull-failed");
        check("pulling image: registry r.example has no image web:1; push it first", pull, false);
        check("pulling image: contacting the registry; cannot reach registry r.example", pull, false);
        check("starting process: the command \"x\" cannot be run: not found", Some("start-failed"), false);
        let taken = "reserving published ports: port 80 is in use by nginx (pid 7); stop it";
        check(taken, Some("port-in-use"), false);
        check("exited with code 1; inspecting container: down", Some("runtime-failed"), false);
        check("exited with code 1; attempt 3 starts at 22:13:22 UTC", None, false);
        check("", None, false);
    }
}
