//! The ids of tasks and of their containers for clients of Docker.

use warren_types::{Id, ServiceId, TaskId};

/// The least number of digits of a task's number in its id.
pub const NUMBER_DIGITS: usize = 6;
/// The digits of a service's id.
const SERVICE_DIGITS: usize = 25;

/// The id of a task for clients of Docker, which show and compare the first characters of ids: its number comes
/// first, and the id of its service last. Both are in base 36.
pub fn docker_id(task_id: &str) -> String {
    let Ok(TaskId { service, number }) = task_id.parse::<TaskId>() else { return task_id.to_owned() };
    let mut digits = Vec::new();
    let mut rest = number;
    while rest > 0 || digits.len() < NUMBER_DIGITS {
        digits.push(char::from_digit((rest % 36) as u32, 36).expect("it is a digit"));
        rest /= 36;
    }
    digits.into_iter().rev().chain(service.to_string().chars()).collect()
}

/// The task that an id of [`docker_id`] means; `None` for any other text.
pub fn warren_id(docker_id: &str) -> Option<TaskId> {
    let end = docker_id.len().checked_sub(SERVICE_DIGITS).filter(|end| *end >= NUMBER_DIGITS)?;
    let (number, service) = docker_id.split_at_checked(end)?;
    let service: ServiceId = service.parse().ok()?;
    Some(TaskId { service, number: u64::from_str_radix(number, 36).ok()? })
}

/// The id of the container of a task: 64 hexadecimal digits, like Docker's. The first twelve, which clients show,
/// are of its number and its service, and the last ones are its whole number.
pub fn container_id(task_id: &str) -> String {
    let Ok(TaskId { service, number }) = task_id.parse::<TaskId>() else { return task_id.to_owned() };
    let (first, service) = (number & 0xff_ffff, { service.0.0 });
    format!("{first:06x}{service:032x}{number:026x}")
}

/// The task of a whole id.
pub fn task_of(container_id: &str) -> Option<TaskId> {
    let is_id = container_id.len() == 64 && container_id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let service = u128::from_str_radix(container_id.get(6..38).filter(|_| is_id)?, 16).ok()?;
    let number = u64::from_str_radix(container_id.get(38..)?, 16).ok()?;
    Some(TaskId { service: ServiceId(Id(service)), number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docker_ids_differ_at_their_start_and_lead_back() {
        for number in [1, 35, 36, 1_000_000, u64::MAX] {
            let id = TaskId { service: ServiceId(Id(7)), number };
            let docker = docker_id(&id.to_string());
            assert_eq!(warren_id(&docker), Some(id), "{docker}");
        }
        let of = |number| docker_id(&TaskId { service: ServiceId(Id(7)), number }.to_string());
        assert_eq!(of(36), "0000100000000000000000000000007");
        assert_ne!(of(1)[..12], of(2)[..12]);
        for text in ["", "web.1", "0000100000000000000000000000", &ServiceId(Id(7)).to_string()] {
            assert_eq!(warren_id(text), None, "{text}");
        }
    }

    #[test]
    fn ids_look_like_those_of_docker_and_lead_back() {
        for number in [1, 0xff_ffff, 0x100_0001, u64::MAX] {
            let id = TaskId { service: ServiceId(Id(u128::MAX / 3)), number };
            let container = container_id(&id.to_string());
            assert_eq!((container.len(), task_of(&container)), (64, Some(id)), "{container}");
        }
        let of = |number| container_id(&TaskId { service: ServiceId(Id(7)), number }.to_string());
        assert_ne!(of(1)[..12], of(2)[..12]);
        for text in ["", "web.1", &"f".repeat(63), &"x".repeat(64)] {
            assert_eq!(task_of(text), None, "{text}");
        }
    }
}
