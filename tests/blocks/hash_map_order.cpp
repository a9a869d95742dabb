// Prints the iteration order of a std::unordered_map after each line of input: "+ HASH" inserts, "- HASH" erases.
// The map's hash function is the identity, as the hash of a key is computed outside.
#include <cstdint>
#include <iostream>
#include <unordered_map>

struct Identity
{
    std::size_t operator()(std::uint64_t value) const noexcept
    {
        return value;
    }
};

struct Key
{
    std::uint64_t hash;
    std::uint64_t id;
    bool operator==(Key const& other) const noexcept
    {
        return id == other.id;
    }
};

// Not noexcept: such a map keeps the hash of each node, as maps with slow hash functions do.
struct KeyHash
{
    std::size_t operator()(Key const& key) const
    {
        return Identity{}(key.hash);
    }
};

int main()
{
    std::unordered_map<Key, int, KeyHash> map;
    char sign;
    Key key;
    while (std::cin >> sign >> key.hash >> key.id)
    {
        if (sign == '+')
        {
            map.emplace(key, 0);
        }
        else
        {
            map.erase(key);
        }
        for (auto const& entry : map)
        {
            std::cout << entry.first.id << ' ';
        }
        std::cout << '\n';
    }
    return 0;
}
