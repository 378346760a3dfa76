//! A field that has its default value in nearly all objects.

/// A value that is nearly always the default and takes one machine word then: a large cluster stores a
/// hundred thousand tasks, and the fields that few of them use would be most of their size. Two are equal if
/// their values are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoxedDefault<T>(Option<Box<T>>);

impl<T> Default for BoxedDefault<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Default + PartialEq> BoxedDefault<T> {
    /// Holds `value`.
    pub fn new(value: T) -> Self {
        Self((value != T::default()).then(|| Box::new(value)))
    }

    /// The value, or the default.
    pub fn get(&self) -> Option<&T> {
        self.0.as_deref()
    }

    /// Changes the value.
    pub fn update(&mut self, change: impl FnOnce(&mut T)) {
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
    fn default_value_is_not_allocated() {
        let mut number = BoxedDefault::<u64>::default();
        for (value, held) in [(0, None), (7, Some(&7)), (8, Some(&8)), (0, None)] {
            number.update(|number| *number = value);
            assert_eq!((number.get(), &number), (held, &BoxedDefault::new(value)));
        }
        assert_eq!(size_of::<BoxedDefault<[u64; 4]>>(), size_of::<usize>());
    }
}
