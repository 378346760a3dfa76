//! What `warren-exec` is told: which container, what to run there, and as whom.
//!
//! On its standard input, which stays open as long as somebody wants the answer: a length as u32, then so many bytes
//! of fields, each a tag as u8, a length as u32, and content. Integers are little-endian. Unlike arguments and an
//! environment, nobody else on the machine can read it.
//!
//! On its standard error it answers one line: see [`Answer`].

/// What to run in which container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The container's first process, on the host.
    pub pid: u32,
    /// The path of each of its cgroups ends with this, which nobody else's does.
    pub cgroup: String,
    /// Ended with its process group after so many milliseconds.
    pub timeout_ms: u64,
    /// Program and arguments, never empty.
    pub arguments: Vec<Vec<u8>>,
    /// `NAME=value`.
    pub environment: Vec<Vec<u8>>,
    /// Absolute, in the container.
    pub directory: Vec<u8>,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
    /// What it may do.
    pub capabilities: Capabilities,
    /// No program gets more rights than the one that started it.
    pub no_new_privileges: bool,
    /// Bounds of setrlimit(2): resource, soft, hard.
    pub limits: Vec<(u32, u64, u64)>,
    /// Filters of system calls, to be installed in this order: each the instructions of a classic BPF program.
    pub filters: Vec<Vec<u8>>,
}

/// Sets of capabilities, each a bit per number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// The most that any program can get.
    pub bounding: u64,
    /// In force.
    pub effective: u64,
    /// That can be put in force.
    pub permitted: u64,
    /// Kept over an execution that asks for them.
    pub inheritable: u64,
    /// Kept over any execution.
    pub ambient: u64,
}

/// What came of it, in one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// `exited CODE`: by itself; 128 + signal number when a signal ended it.
    Exited(i32),
    /// `late`: it was still at work when its time was over.
    Late,
    /// `failed REASON`: it could not be run.
    Failed(String),
}

const PID: u8 = 1;
const CGROUP: u8 = 2;
const TIMEOUT: u8 = 3;
const ARGUMENT: u8 = 4;
const VARIABLE: u8 = 5;
const DIRECTORY: u8 = 6;
const UID: u8 = 7;
const GID: u8 = 8;
const GROUP: u8 = 9;
const CAPABILITIES: u8 = 10;
const NO_NEW_PRIVILEGES: u8 = 11;
const LIMIT: u8 = 12;
const FILTER: u8 = 13;

impl Plan {
    /// As it is sent, its length before it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let mut put = |tag: u8, content: &[u8]| {
            body.push(tag);
            body.extend(u32::try_from(content.len()).unwrap_or(u32::MAX).to_le_bytes());
            body.extend(content);
        };
        let Capabilities { bounding, effective, permitted, inheritable, ambient } = self.capabilities;
        put(PID, &self.pid.to_le_bytes());
        put(CGROUP, self.cgroup.as_bytes());
        put(TIMEOUT, &self.timeout_ms.to_le_bytes());
        self.arguments.iter().for_each(|argument| put(ARGUMENT, argument));
        self.environment.iter().for_each(|variable| put(VARIABLE, variable));
        put(DIRECTORY, &self.directory);
        put(UID, &self.uid.to_le_bytes());
        put(GID, &self.gid.to_le_bytes());
        self.groups.iter().for_each(|group| put(GROUP, &group.to_le_bytes()));
        let sets = [bounding, effective, permitted, inheritable, ambient].map(u64::to_le_bytes);
        put(CAPABILITIES, sets.as_flattened());
        if self.no_new_privileges {
            put(NO_NEW_PRIVILEGES, &[]);
        }
        for (resource, soft, hard) in &self.limits {
            put(LIMIT, &[&resource.to_le_bytes()[..], &soft.to_le_bytes(), &hard.to_le_bytes()].concat());
        }
        self.filters.iter().for_each(|filter| put(FILTER, filter));
        let mut sent = u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes().to_vec();
        sent.extend(body);
        sent
    }

    /// Reads what follows the length; `None` when it is not a plan.
    #[must_use]
    pub fn decode(mut body: &[u8]) -> Option<Plan> {
        let mut plan = Plan::default();
        while let Some((tag, rest)) = body.split_first() {
            let (length, rest) = rest.split_first_chunk()?;
            let (content, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            body = rest;
            match *tag {
                PID => plan.pid = number(content)?,
                CGROUP => plan.cgroup = String::from_utf8(content.to_vec()).ok()?,
                TIMEOUT => plan.timeout_ms = long(content)?,
                ARGUMENT => plan.arguments.push(content.to_vec()),
                VARIABLE => plan.environment.push(content.to_vec()),
                DIRECTORY => plan.directory = content.to_vec(),
                UID => plan.uid = number(content)?,
                GID => plan.gid = number(content)?,
                GROUP => plan.groups.push(number(content)?),
                CAPABILITIES => {
                    let sets: Option<Vec<u64>> = content.chunks(8).map(long).collect();
                    let [bounding, effective, permitted, inheritable, ambient] = sets?[..] else {
                        return None;
                    };
                    plan.capabilities = Capabilities { bounding, effective, permitted, inheritable, ambient };
                }
                NO_NEW_PRIVILEGES => plan.no_new_privileges = true,
                LIMIT => {
                    let (resource, bounds) = content.split_at_checked(4)?;
                    let (soft, hard) = bounds.split_at_checked(8)?;
                    plan.limits.push((number(resource)?, long(soft)?, long(hard)?));
                }
                FILTER => plan.filters.push(content.to_vec()),
                _ => return None,
            }
        }
        let is_whole = plan.pid > 0 && !plan.arguments.is_empty() && !plan.cgroup.is_empty();
        is_whole.then_some(plan)
    }
}

fn number(content: &[u8]) -> Option<u32> {
    content.try_into().ok().map(u32::from_le_bytes)
}

fn long(content: &[u8]) -> Option<u64> {
    content.try_into().ok().map(u64::from_le_bytes)
}

impl Answer {
    /// As it is written, without a line feed.
    #[must_use]
    pub fn to_line(&self) -> String {
        match self {
            Self::Exited(code) => format!("exited {code}"),
            Self::Late => "late".to_owned(),
            Self::Failed(reason) => format!("failed {}", reason.replace('\n', " ")),
        }
    }

    /// Reads a line; `None` when it is none.
    #[must_use]
    pub fn parse(line: &str) -> Option<Answer> {
        match line.trim_end().split_once(' ') {
            Some(("exited", code)) => code.parse().ok().map(Self::Exited),
            Some(("failed", reason)) => Some(Self::Failed(reason.to_owned())),
            None if line.trim_end() == "late" => Some(Self::Late),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            pid: 7,
            cgroup: "/warren/n/t-1".into(),
            timeout_ms: 5000,
            arguments: vec![b"sh".to_vec(), b"-c".to_vec(), Vec::new()],
            environment: vec![b"A=b\n\xff".to_vec()],
            directory: b"/".to_vec(),
            uid: 1000,
            gid: u32::MAX,
            groups: vec![1, 2],
            capabilities: Capabilities {
                bounding: 1,
                effective: 2,
                permitted: 3,
                inheritable: 4,
                ambient: 5,
            },
            no_new_privileges: true,
            limits: vec![(7, 1, u64::MAX)],
            filters: vec![vec![1; 16], vec![2; 8]],
        }
    }

    #[test]
    fn a_plan_arrives_as_it_was_sent() {
        let sent = plan().encode();
        let (length, body) = sent.split_first_chunk().unwrap();
        assert_eq!(u32::from_le_bytes(*length) as usize, body.len());
        assert_eq!(Plan::decode(body), Some(plan()));
        for end in 0..body.len() {
            // A cut one is none, or one that lacks something.
            assert_ne!(Plan::decode(&body[..end]), Some(plan()), "{end}");
        }
        assert_eq!(Plan::decode(&[99, 0, 0, 0, 0]), None);
    }

    #[test]
    fn an_answer_is_one_line() {
        for answer in [Answer::Exited(3), Answer::Late, Answer::Failed("no such program: x".into())] {
            assert_eq!(Answer::parse(&answer.to_line()), Some(answer));
        }
        assert_eq!(Answer::Failed("a\nb".into()).to_line(), "failed a b");
        assert_eq!(Answer::parse("exited x"), None);
        assert_eq!(Answer::parse(""), None);
    }
}
