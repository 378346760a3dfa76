//! A part of an object that nearly all objects of its kind are without.

/// A value that nearly always is what it is by default, and takes one word then: a large cluster holds a hundred
/// thousand tasks, and what few of them have would be most of each. Two are equal if their values are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seldom<T>(Option<Box<T>>);

impl<T> Default for Seldom<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Default + PartialEq> Seldom<T> {
    /// Holds `value`.
    pub fn new(value: T) -> Self {
        Self((value != T::default()).then(|| Box::new(value)))
    }

    /// The value; `None` while it is what it is by default.
    pub fn get(&self) -> Option<&T> {
        self.0.as_deref()
    }

    /// Changes the value.
    pub fn change(&mut self, change: impl FnOnce(&mut T)) {
        match &mut self.0 {
            Some(value) => {
                change(value);
                if **value == T::default() {
                    self.0 = None;
                }
            }
            None => {
                let mut value = T::default();
                change(&mut value);
                *self = Self::new(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_as_by_default_takes_no_place() {
        let mut number = Seldom::<u64>::default();
        for (value, held) in [(0, None), (7, Some(&7)), (8, Some(&8)), (0, None)] {
            number.change(|number| *number = value);
            assert_eq!((number.get(), &number), (held, &Seldom::new(value)));
        }
        assert_eq!(size_of::<Seldom<[u64; 4]>>(), size_of::<usize>());
    }
}
