// Overloaded: functions for the alternatives of a variant, as one that std::visit takes.
#pragma once

namespace troupe {

template <class... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <class... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

}  // namespace troupe
