// Prints for each line of input "N RANK..." the indices of the ranks in the order that std::sort leaves them in.
#include <algorithm>
#include <iostream>
#include <utility>
#include <vector>

int main()
{
    std::size_t size;
    while (std::cin >> size)
    {
        std::vector<std::pair<int, std::size_t>> entries(size);
        for (std::size_t index = 0; index < size; ++index)
        {
            std::cin >> entries[index].first;
            entries[index].second = index;
        }
        std::sort(
            entries.begin(), entries.end(), [](auto const& left, auto const& right) { return left.first < right.first; });
        for (auto const& entry : entries)
        {
            std::cout << entry.second << ' ';
        }
        std::cout << '\n';
    }
    return 0;
}
